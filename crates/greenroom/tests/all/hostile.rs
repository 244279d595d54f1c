//! A hostile bot tries everything: saved tokens, other processes, the server's files, files of earlier bots. It gets
//! nothing, and the next user's bot runs undisturbed.

mod containers;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use reqwest::{Method, StatusCode};
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::{Backend, Client, Database, Life, Process, ServerFixture, found, meet_link, process_pool, until};

const SLOT: &str = "pool-meet-001";
/// Stays in its meeting until it gets the command to leave.
const BOT: &str = "echo '{\"event\": \"joined\"}'; read leave";

/// Requests the slot's bot with a token again and again, like an attacker who has learned the token.
pub struct Thief {
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<Vec<StatusCode>>,
}

impl Thief {
    pub fn with(client: &Client, token: &str) -> Self {
        let (client, stop) = (client.with(token), Arc::new(AtomicBool::new(false)));
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let mut got = Vec::new();
            while !stopped.load(Ordering::SeqCst) || got.is_empty() {
                let (status, body) = assignment(&client, None).await;
                assert!(!body.to_string().contains("meeting_url"), "it got the bot of another user: {body}");
                got.push(status);
            }
            got
        });
        Self { stop, task }
    }

    /// The status of each answer.
    pub async fn got(self) -> Vec<StatusCode> {
        self.stop.store(true, Ordering::SeqCst);
        self.task.await.unwrap()
    }

    pub async fn got_nothing(self) {
        let got = self.got().await;
        assert!(got.iter().all(|status| *status == StatusCode::UNAUTHORIZED), "{got:?}");
    }
}

/// Requests the assignment once, with an agent name.
async fn assignment(client: &Client, agent: Option<&str>) -> (StatusCode, Value) {
    let (status, _, body) = assignment_and_next(client, agent).await;
    (status, body)
}

/// Requests the assignment once. Returns also the token for the next assignment, if there is one.
async fn assignment_and_next(client: &Client, agent: Option<&str>) -> (StatusCode, Option<String>, Value) {
    let mut request = client.request(Method::GET, "/agent/assignment?wait_ms=0");
    if let Some(agent) = agent {
        request = request.header("Greenroom-Agent", agent);
    }
    let answer = request.send().await.unwrap();
    let next = answer.headers().get("greenroom-slot-token").map(|token| token.to_str().unwrap().to_owned());
    let status = answer.status();
    (status, next, serde_json::from_str(&answer.text().await.unwrap()).unwrap_or(Value::Null))
}

/// The token that a process was started with.
fn token_of(pid: i32) -> String {
    let environment = std::fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
    let token = environment.split('\0').find_map(|entry| entry.strip_prefix("GREENROOM_SLOT_TOKEN="));
    token.unwrap().to_owned()
}

async fn hot(backend: Backend, settings: &str, script: &str) -> ServerFixture {
    ServerFixture::open(backend, &process_pool("meet", &format!("standby = \"running\"\n{settings}"), script)).await
}

#[rstest]
#[case::sqlite_same_agent(Backend::Sqlite, 0)]
#[case::sqlite_fresh_slot(Backend::Sqlite, 1)]
#[case::postgres_same_agent(Backend::Postgres, 0)]
#[case::postgres_fresh_slot(Backend::Postgres, 1)]
#[tokio::test]
async fn a_slot_token_that_a_bot_has_saved_gets_nothing_of_the_next_bot(
    #[case] backend: Backend,
    #[case] recycle_after: u32,
) {
    if !is_root() {
        return skipped("only root sees the environment of an agent");
    }
    let settings = format!("max_slots = 1\nmin_idle = 1\nrecycle_after = {recycle_after}");
    let fixture = hot(backend, &settings, BOT).await;
    fixture.until_slots(1, 0).await;
    // The attacker reads the environment of the agent, and keeps the token.
    let saved = token_of(fixture.agent(SLOT).await.pid);
    let first = fixture.active(0).await;
    let thief = Thief::with(&fixture.admin, &saved);
    fixture.leave(&first).await;
    for number in 1..4 {
        let next = fixture.active(number).await;
        assert_eq!(next["slot"], SLOT);
        fixture.leave(&next).await;
    }
    thief.got_nothing().await;
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_slot_that_is_created_again_under_its_name_has_another_token(#[case] backend: Backend) {
    if !is_root() {
        return skipped("only root sees the environment of an agent");
    }
    let fixture = hot(backend, "max_slots = 1\nmin_idle = 1", BOT).await;
    fixture.until_slots(1, 0).await;
    let agent = fixture.agent(SLOT).await;
    let old = token_of(agent.pid);
    let (status, _) = fixture.admin.send(Method::DELETE, &format!("/admin/slots/{SLOT}"), None).await;
    assert!(status.is_success());
    until("another agent is in the slot", async || {
        fixture.database.agent(SLOT).is_some_and(|now| now.pid != agent.pid)
    })
    .await;
    fixture.until_slots(1, 0).await;
    assert_ne!(token_of(fixture.agent(SLOT).await.pid), old);
    assert_eq!(assignment(&fixture.admin.with(&old), None).await.0, StatusCode::UNAUTHORIZED);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn an_assignment_is_handed_to_one_agent_process_and_repeated_only_to_it_until_its_bot_has_started(
    #[case] backend: Backend,
) {
    // The test plays the agent. The process in the slot only waits.
    let pool = "[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\nprovider = \"process\"\nmax_slots = 1\n\
                min_idle = 1\nrecycle_after = 0\nstandby = \"running\"\nprocess = { command = [\"sleep\", \"1000\"] }\n";
    let fixture = ServerFixture::open(backend, pool).await;
    let process = found("it was started", async || fixture.database.running().pop()).await;
    let first = fixture.admin.with(&token_of(process.pid));
    until("the agent waits", async || {
        assignment(&first, Some("a")).await.0 == StatusCode::NO_CONTENT && fixture.slots().await[0]["status"] == "idle"
    })
    .await;
    // An agent without a bot may restart, and is then another process.
    assert_eq!(assignment(&first, Some("b")).await.0, StatusCode::NO_CONTENT);
    let bot = fixture.user.bot(&meet_link(0)).await;
    for stranger in [Some("a"), Some("c"), None] {
        assert_eq!(assignment(&first, stranger).await.0, StatusCode::UNAUTHORIZED);
    }
    let (status, next, data) = assignment_and_next(&first, Some("b")).await;
    assert_eq!((status, &data["bot_id"]), (StatusCode::OK, &json!(bot)));
    // The answer may have been lost, so the agent repeats the request.
    let repeated = assignment_and_next(&first, Some("b")).await;
    assert_eq!(
        (repeated.0, &repeated.1, &repeated.2["connection_id"]),
        (StatusCode::OK, &next, &data["connection_id"])
    );
    let life = Life::from_data(&fixture.admin, &data);
    life.report("started", json!({})).await;
    assert_eq!(assignment(&first, Some("b")).await.0, StatusCode::UNAUTHORIZED);
    let second = fixture.admin.with(&next.unwrap());
    assert_eq!(assignment(&second, Some("b")).await.0, StatusCode::NO_CONTENT);
    assert_eq!(assignment(&second, Some("c")).await.0, StatusCode::UNAUTHORIZED);
    life.report("joined", json!({})).await;
    life.report("exited", json!({"exit_code": 0})).await;
    // The same agent continues, and only its next token is valid.
    let bot = fixture.user.bot(&meet_link(1)).await;
    assert_eq!(assignment(&first, Some("b")).await.0, StatusCode::UNAUTHORIZED);
    let (status, data) = assignment(&second, Some("b")).await;
    assert_eq!((status, &data["bot_id"]), (StatusCode::OK, &json!(bot)));
}

#[tokio::test]
async fn an_agent_with_an_invalid_name_gets_an_error() {
    let pool = "[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\nprovider = \"process\"\nmax_slots = 1\n\
                min_idle = 1\nstandby = \"running\"\nprocess = { command = [\"sleep\", \"1000\"] }\n";
    let fixture = ServerFixture::open(Backend::Sqlite, pool).await;
    let process = found("it was started", async || fixture.database.running().pop()).await;
    let (status, body) = assignment(&fixture.admin.with(&token_of(process.pid)), Some(&"x".repeat(65))).await;
    assert_eq!((status.as_u16(), &body["code"]), (422, &json!("invalid")));
    assert!(body["detail"].as_str().unwrap().contains("greenroom-agent"), "{body}");
}

/// Tries everything, and prints a line that begins with GOT for each success.
const TRIES: &str = r#"
    got() { echo "GOT $*"; }
    for process in /proc/[0-9]*; do
        set -- $(tr '\0' ' ' < $process/cmdline 2>/dev/null)
        case $1 in */greenroom) ;; *) continue;; esac
        if tr '\0' '\n' < $process/environ 2>/dev/null | grep -q .; then got "the environment of $process"; fi
        if (exec 3< $process/mem) 2>/dev/null; then got "the memory of $process"; fi
        if (ls $process/fd | grep -q .) 2>/dev/null; then got "the descriptors of $process"; fi
        if (ls $process/root/ | grep -q .) 2>/dev/null; then got "the file system of $process"; fi
    done
    if env | grep -q 'SLOT_TOKEN\|PROCESS_START'; then got "a variable of the agent"; fi
    for descriptor in /proc/$$/fd/*; do
        case $(readlink $descriptor) in *greenroom*|*log|socket:*) got "$descriptor $(readlink $descriptor)";; esac
    done
    if cat "$DATABASE" > /dev/null 2>&1; then got "the server's database"; fi
    if cat "$SLOTS"/*/log > /dev/null 2>&1; then got "the log of the slot"; fi
    if (echo x > "$SLOTS/x") 2>/dev/null; then got "the folder of all slots"; fi
    for folder in /tmp /var/tmp /dev/shm "$HOME" "$TMPDIR"; do
        if [ -e $folder/left-by-another ]; then got "what another left in $folder"; fi
    done
    for folder in /tmp /var/tmp /dev/shm "$HOME" "$TMPDIR"; do touch $folder/left-by-another; done
    echo "TRIED as $(id -u)"
    echo '{"event": "joined"}'
    read leave
"#;

#[rstest]
#[case::hot("running", 1)]
#[case::hot_with_the_same_agent("running", 0)]
#[case::prewarmed("prewarmed", 1)]
#[case::prewarmed_with_the_same_agent("prewarmed", 0)]
#[case::stopped("stopped", 1)]
#[tokio::test]
async fn a_process_bot_with_a_user_of_its_own_gets_nothing(#[case] standby: &str, #[case] recycle_after: u32) {
    if !is_root() {
        return skipped("only root can run slots as another user");
    }
    let database = Database::new(Backend::Sqlite).await;
    let path = database.folder.path().join("greenroom.db");
    let script = format!(
        "DATABASE={} SLOTS={}; {}",
        path.display(),
        database.folder.path().join("greenroom-slots").display(),
        tries(TRIES, standby)
    );
    let settings = format!("{}\nmax_slots = 1\nrecycle_after = {recycle_after}", standby_settings(standby));
    let pool = process_pool("meet", &settings, &script).replace(" }\n", ", user = \"nobody\" }\n");
    let server = Process::start_configured(&database, &pool).await;
    let (admin, user) = (server.admin(), server.admin().user(1_000).await);
    let fixture = ServerFixture { server, admin, user, database };
    for number in 0..2 {
        let bot = fixture.active(number).await;
        fixture.leave(&bot).await;
        until("the slot is free", async || fixture.slots().await[0]["status"] == "idle").await;
    }
    let log = fixture.database.log_of(SLOT);
    // A prewarmed slot also has the command for the next bot.
    let commands = log.matches("TRIED as 65534").count();
    assert!(commands == 2 || (standby == "prewarmed" && commands == 3), "{log}");
    // With the same agent, files in /tmp stay in the slot until it is recycled, as the pool is configured.
    let kept = |line: &&str| recycle_after == 0 && line.starts_with("GOT what another left");
    let got: Vec<&str> = log.lines().filter(|line| line.starts_with("GOT")).filter(|line| !kept(line)).collect();
    assert_eq!(got, Vec::<&str>::new());
    // It left nothing for other processes of the machine either.
    for folder in ["/tmp", "/var/tmp", "/dev/shm"] {
        assert!(!std::path::Path::new(folder).join("left-by-another").exists(), "in {folder}");
    }
}

/// The settings of a pool whose slots stand by in this way.
fn standby_settings(standby: &str) -> String {
    match standby {
        "prewarmed" => "standby = \"running\"\nprewarm = true".to_owned(),
        _ => format!("standby = \"{standby}\""),
    }
}

/// The script of a bot in such a pool. In a prewarmed slot it tries everything before it has a meeting.
fn tries(script: &str, standby: &str) -> String {
    match standby {
        "prewarmed" => script.replacen("echo '{\"event\": \"joined\"}'", PREWARMED_JOIN, 1),
        _ => script.to_owned(),
    }
}

const PREWARMED_JOIN: &str = r#"echo '{"event": "ready"}'; read assignment; echo '{"event": "joined"}'"#;

#[tokio::test]
async fn a_missing_operating_system_user_fails_the_bot_with_a_clear_message() {
    let pool = process_pool("meet", "", BOT).replace(" }\n", ", user = \"no-such-user\" }\n");
    let fixture = ServerFixture::open(Backend::Sqlite, &pool).await;
    let bot = fixture.user.bot(&meet_link(0)).await;
    let bot = fixture.user.until(&bot, "failed").await;
    assert_eq!(
        (&bot["reason"], &bot["error"]),
        (&json!("deploy_failed"), &json!("there is no user `no-such-user` on this machine"))
    );
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

fn skipped(why: &str) {
    println!("skipped: {why}");
}
