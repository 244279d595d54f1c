//! The dashboard, in a real Chromium. Each test starts the server and runs a scenario of `web/tests`, which drives the
//! browser with Playwright. Scenario and test talk by lines: the scenario says where it is, and the test goes on.

use std::process::Stdio;

use rstest::rstest;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::support::{ADMIN_TOKEN, Backend, Client, Database, Process, in_repository, meet_link, process_pool, until};

/// A scenario that runs in another process.
#[derive(Debug)]
pub struct Scenario {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    output: Vec<String>,
}

impl Scenario {
    /// Starts `web/tests/{name}.js` for the servers at these addresses. `settings` are added to what each scenario gets.
    pub fn start(name: &str, urls: &[&str], settings: &Value) -> Self {
        let variable = |name: &str| {
            std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set; ./scripts/test finds it and sets it"))
        };
        let mut all = json!({"urls": urls, "url": urls[0], "admin_token": ADMIN_TOKEN});
        for (key, value) in settings.as_object().into_iter().flatten() {
            all[key] = value.clone();
        }
        let mut command = Command::new("node");
        command
            .arg(in_repository(&format!("web/tests/{name}.js")))
            .env("CHROMIUM", variable("CHROMIUM"))
            .env("TEST_NODE_PACKAGES", variable("TEST_NODE_PACKAGES"));
        Self::spawn(command, &all)
    }

    /// Starts a command that talks by lines as a scenario does.
    pub fn spawn(mut command: Command, settings: &Value) -> Self {
        let mut child = command
            .env("SCENARIO_SETTINGS", settings.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, stdin, lines, output: Vec::new() }
    }

    /// Waits until the scenario comes to this point.
    pub async fn reaches(&mut self, point: &str) {
        let expected = format!("reached: {point}");
        while let Some(line) = self.lines.next_line().await.unwrap() {
            if line == expected {
                return;
            }
            assert!(!line.starts_with("reached: "), "{line} instead of {expected}\n{}", self.output.join("\n"));
            self.output.push(line);
        }
        panic!("the scenario ended before {expected}\n{}", self.output.join("\n"));
    }

    /// Lets the scenario go on from the point that it has come to.
    pub async fn goes_on(&mut self, answer: &str) {
        self.stdin.write_all(format!("{answer}\n").as_bytes()).await.unwrap();
    }

    /// Waits for the end of the scenario, which must have passed.
    pub async fn passes(mut self) {
        while let Some(line) = self.lines.next_line().await.unwrap() {
            self.output.push(line);
        }
        let status = self.child.wait().await.unwrap();
        let output = self.output.join("\n");
        assert!(status.success() && self.output.iter().any(|line| line == "passed"), "{status}\n{output}");
    }
}

/// A bot that joins, says something, and leaves when it is asked to.
const JOINS: &str = "echo '{\"event\": \"joined\"}'
echo '{\"event\": \"transcript\", \"segments\": [{\"start_time\": 0, \"end_time\": 1, \"text\": \"The minutes of the meeting\"}]}'
read leave";

async fn served(backend: Backend) -> (Database, Process) {
    let database = Database::new(backend).await;
    let server = Process::start_configured(&database, &process_pool("google-meet", "max_slots = 3", JOINS)).await;
    (database, server)
}

/// Creates another user than `Client::user`.
async fn other_user(admin: &Client) -> Client {
    let body = json!({"email": "grace@example.com", "name": "Grace", "max_concurrent_bots": 2});
    let (status, body) = admin.post("/admin/users", body).await;
    assert!(status.is_success(), "{body}");
    admin.with(body["api_key"].as_str().unwrap())
}

#[tokio::test]
async fn people_sign_in_with_the_admin_token_or_an_api_key_and_see_what_it_may_see() {
    let (_database, server) = served(Backend::Sqlite).await;
    let user = server.admin().user(2).await;
    let other = other_user(&server.admin()).await;
    user.bot(&meet_link(0)).await;
    let other_bot = other.bot(&meet_link(1)).await;
    let settings = json!({
        "api_key": user.token(), "own_bot": "abc-defg-aaa", "other_bot": "abc-defg-baa", "other_bot_id": other_bot,
    });
    Scenario::start("sign-in", &[&server.url], &settings).passes().await;
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_is_started_by_a_link_seen_live_and_stopped(#[case] backend: Backend) {
    let (_database, server) = served(backend).await;
    server.admin().user(2).await;
    Scenario::start("bot-life", &[&server.url], &Value::Null).passes().await;
}

#[tokio::test]
async fn a_slot_in_error_needs_attention_until_it_is_recovered() {
    let database = Database::new(Backend::Sqlite).await;
    let program = database.folder.path().join("bot");
    let pool = format!(
        "[[pool]]\nname = \"google-meet\"\nplatform = \"google_meet\"\nprovider = \"process\"\nmax_slots = 1\n\
         process = {{ command = [\"{}\"] }}\n",
        program.display()
    );
    let server = Process::start_configured(&database, &pool).await;
    let user = server.admin().user(2).await;
    let bot = user.bot(&meet_link(0)).await;
    user.until(&bot, "failed").await;
    until("the slot is in error", async || server.admin().get("/admin/slots").await["slots"][0]["status"] == "error")
        .await;
    // What was missing is there now.
    std::fs::write(&program, "#!/bin/sh\nsleep 1000\n").unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let settings = json!({"slot": "pool-google-meet-001", "words": "No such file"});
    Scenario::start("slot-error", &[&server.url], &settings).passes().await;
}

#[tokio::test]
async fn the_page_says_that_the_server_is_away_and_catches_up_when_it_is_back() {
    let (database, server) = served(Backend::Sqlite).await;
    let (url, user) = (server.url.clone(), server.admin().user(3).await);
    let bot = user.bot(&meet_link(0)).await;
    user.until(&bot, "active").await;
    let mut scenario = Scenario::start("server-away", &[&url], &Value::Null);
    scenario.reaches("the server is to be killed").await;
    let address = url.trim_start_matches("http://").to_owned();
    server.kill().await;
    scenario.goes_on("").await;
    scenario.reaches("the server is to come back").await;
    let file = database.folder.path().join("greenroom.toml").display().to_string();
    let server = Process::start_listening(&database, &address, &["--config", &file]).await;
    user.on(&server.url).bot(&meet_link(1)).await;
    scenario.goes_on("").await;
    scenario.passes().await;
}

#[tokio::test]
async fn a_page_shows_what_another_replica_does_on_postgres() {
    let database = Database::new(Backend::Postgres).await;
    let pool = process_pool("google-meet", "max_slots = 3", JOINS);
    let one = Process::start_configured(&database, &pool).await;
    let other = Process::start_configured(&database, &pool).await;
    let user = other.admin().user(2).await;
    let mut scenario = Scenario::start("two-replicas", &[&one.url], &Value::Null);
    scenario.reaches("the other replica is to start a bot").await;
    let bot = user.bot(&meet_link(0)).await;
    scenario.goes_on(&bot).await;
    scenario.passes().await;
    assert_eq!(user.show_bot(&bot).await["reason"], "stopped");
}

#[tokio::test]
async fn eight_tabs_share_one_stream_and_another_tab_takes_it_over() {
    let (_database, server) = served(Backend::Sqlite).await;
    let user = server.admin().user(3).await;
    let mut scenario = Scenario::start("tabs", &[&server.url], &Value::Null);
    scenario.reaches("a bot is to be started").await;
    user.bot(&meet_link(0)).await;
    scenario.goes_on("").await;
    scenario.reaches("another bot is to be started").await;
    user.bot(&meet_link(1)).await;
    scenario.goes_on("").await;
    scenario.passes().await;
}

#[tokio::test]
async fn a_person_with_a_keyboard_only_signs_in_and_stops_a_bot() {
    let (_database, server) = served(Backend::Sqlite).await;
    server.admin().user(2).await;
    Scenario::start("keyboard", &[&server.url], &Value::Null).passes().await;
}

#[tokio::test]
async fn axe_finds_nothing_on_any_view() {
    let (_database, server) = served(Backend::Sqlite).await;
    let user = server.admin().user(9).await;
    let mut bots = Vec::new();
    // Three are in their meetings, and the last one waits in the queue.
    for number in 0..4 {
        bots.push(user.bot(&meet_link(number)).await);
    }
    user.until(&bots[0], "active").await;
    let settings = json!({"bot": bots[0], "slot": "pool-google-meet-001"});
    Scenario::start("accessibility", &[&server.url], &settings).passes().await;
}

#[tokio::test]
async fn what_bots_and_users_wrote_stays_text() {
    let text = "<img src=x:attack onerror=attacked.push(1)>";
    let script = format!(
        "echo '{text}-printed'\n\
         echo '{{\"event\": \"status\", \"status\": \"needs_help\", \"reason\": \"{text}-reason\"}}'\n\
         echo '{{\"event\": \"transcript\", \"segments\": [{{\"start_time\": 0, \"end_time\": 1, \"text\": \"{text}-said\", \
         \"speaker\": \"{text}\"}}]}}'\nread leave"
    );
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start_configured(&database, &process_pool("google-meet", "max_slots = 3", &script)).await;
    let user = server.admin().user(2).await;
    let request = json!({
        "meeting_url": meet_link(0), "bot_display_name": format!("{text}-name"), "metadata": {text: text},
        "config": {text: text},
    });
    let bot = user.ask(request).await["id"].as_str().unwrap().to_owned();
    user.until(&bot, "needs_help").await;
    let settings = json!({"bot": bot, "text": text});
    Scenario::start("hostile-text", &[&server.url], &settings).passes().await;
}

#[tokio::test]
async fn another_site_can_neither_use_the_session_nor_frame_the_page() {
    let (_database, server) = served(Backend::Sqlite).await;
    let user = server.admin().user(2).await;
    let bot = user.bot(&meet_link(0)).await;
    user.until(&bot, "active").await;
    Scenario::start("other-site", &[&server.url], &json!({"bot": bot})).passes().await;
}

#[tokio::test]
async fn the_scripts_of_the_page_agree_with_the_openapi_document() {
    let packages = std::env::var("TEST_NODE_PACKAGES").expect("./scripts/test sets TEST_NODE_PACKAGES");
    let program = |name: &str| format!("{packages}/node_modules/.bin/{name}");
    let folder = tempfile::tempdir().unwrap();
    let in_folder = |name: &str| folder.path().join(name);
    let document = serde_json::to_string(&greenroom::api::document()).unwrap();
    std::fs::write(in_folder("openapi.json"), document).unwrap();
    let web = in_repository("web").canonicalize().unwrap();
    let exclude = ["vendor", "tests", "docs"].map(|name| web.join(name));
    let settings = json!({
        "extends": web.join("tsconfig.json"),
        "compilerOptions": {"paths": {"#api": [in_folder("api.d.ts")]}},
        "include": [web.join("**/*.js"), web.join("**/*.d.ts")],
        "exclude": exclude,
    });
    std::fs::write(in_folder("tsconfig.json"), settings.to_string()).unwrap();
    let run = async |name: &str, arguments: [std::path::PathBuf; 3]| {
        let output = Command::new(program(name)).args(arguments).output().await.unwrap();
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        assert!(output.status.success(), "{name}: {}", text.join("\n"));
    };
    run("openapi-typescript", [in_folder("openapi.json"), "--output".into(), in_folder("api.d.ts")]).await;
    run("tsc", ["--project".into(), in_folder("tsconfig.json"), "--noEmit".into()]).await;
}
