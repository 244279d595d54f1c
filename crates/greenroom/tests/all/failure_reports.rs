//! Twelve failures on a real Docker Engine. Each test checks what the user, the events, the log and the doctor say, and
//! that it is true. With `--no-capture`, each test prints these texts; `docs/failures.md` has them.

use std::time::Duration;

use bollard::query_parameters::RemoveContainerOptionsBuilder;
use serde_json::{Value, json};

use crate::support::{
    Backend, Client, Database, Engine, OBEDIENT, PrivateEngine, PrivatePostgres, Process, Recipe, found, meet_link,
    until,
};

/// A server with one pool, whose log and doctor are read.
struct Situation {
    name: &'static str,
    server: Process,
    user: Client,
    database: Database,
    toml: String,
    pool: String,
}

/// All texts about a bot.
struct Diagnosis {
    bot: Value,
    trail: String,
    doctor: String,
    /// The doctor's output for the whole installation, and whether it found no problem.
    overall: (bool, String),
    log: String,
}

/// Deadlines that are short enough for a test.
const QUICK: &str = "[sweeper]\ninterval = \"1s\"\nno_start = \"5s\"\nno_join = \"5s\"\n[sync]\ninterval = \"1s\"\n\
                     [recovery]\ninterval = \"1s\"\n";

impl Situation {
    async fn new(name: &'static str, engine: &Engine, image: &str, settings: &str) -> Self {
        Self::on(name, Database::new(Backend::Sqlite).await, engine, image, settings).await
    }

    async fn on(name: &'static str, database: Database, engine: &Engine, image: &str, settings: &str) -> Self {
        let pool = format!("s{}", &uuid::Uuid::new_v4().simple().to_string()[..12]);
        let toml = format!(
            "{QUICK}[[pool]]\nname = \"{pool}\"\nplatform = \"google_meet\"\nprovider = \"docker\"\n{settings}\n\
             [pool.docker]\nhost = \"{}\"\nimage = \"{image}\"\n",
            engine.host
        );
        let server = Process::start_for_containers_logging(&database, &toml, None).await;
        let user = server.admin().user(500).await;
        Self { name, server, user, database, toml, pool }
    }

    fn slot(&self, number: usize) -> String {
        format!("pool-{}-{number:03}", self.pool)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.database.folder.path().join("log")).unwrap()
    }

    /// Waits until no start is in progress: a slot that ends during its start is started again.
    async fn until_started(&self) {
        until("nothing is being started", async || {
            self.server.admin().get("/admin/deployments").await["entries"] == json!([])
        })
        .await;
    }

    /// Starts the server on the same address, with this configuration.
    async fn start_again(&mut self, toml: &str) {
        let address = self.server.url.trim_start_matches("http://").to_owned();
        self.server = Process::start_for_containers_logging(&self.database, toml, Some(&address)).await;
    }

    async fn doctor(&self, arguments: &[&str]) -> (bool, String) {
        let mut command = Process::command();
        command.arg("doctor").args(arguments).current_dir(self.database.folder.path());
        command.args(["--config", "greenroom.toml", "--database", &self.database.url]);
        let output = command.output().await.unwrap();
        let said = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
        (output.status.success(), said)
    }

    /// Collects and prints all texts about a bot.
    async fn diagnose(&self, bot: &str) -> Diagnosis {
        let shown = self.user.show_bot(bot).await;
        let events = self.user.get(&format!("/bots/{bot}/events")).await;
        let shown_event = |event: &Value| {
            let to = event["to"].as_str().or(event["kind"].as_str()).unwrap_or_default();
            event["reason"].as_str().map_or_else(|| to.to_owned(), |reason| format!("{to} ({reason})"))
        };
        let trail: Vec<String> = events["events"].as_array().unwrap().iter().map(shown_event).collect();
        let (_, doctor) = self.doctor(&["bot", bot]).await;
        let overall = self.doctor(&[]).await;
        let diagnosis = Diagnosis { bot: shown, trail: trail.join(" → "), doctor, overall, log: self.log() };
        let [status, reason, fault, error] = ["status", "reason", "fault", "error"].map(|field| &diagnosis.bot[field]);
        println!("## {}\nuser: {status} {reason} {fault} {error}\nevents: {}", self.name, diagnosis.trail);
        println!("doctor bot:\n{}\ndoctor:\n{}\nlog:", diagnosis.doctor, diagnosis.overall.1);
        for line in diagnosis.log.lines().filter(|line| line.contains("\"WARN\"") || line.contains("\"ERROR\"")) {
            println!("  {line}");
        }
        diagnosis
    }
}

impl Diagnosis {
    fn ended(&self) -> Value {
        json!([self.bot["status"], self.bot["reason"], self.bot["fault"]])
    }

    fn error(&self) -> &str {
        self.bot["error"].as_str().unwrap_or_default()
    }

    /// Whether the log has a line with this message about this bot or slot.
    fn has_logged(&self, message: &str, subject: &str) -> bool {
        self.log.lines().any(|line| line.contains(&format!("\"{message}")) && line.contains(subject))
    }
}

async fn remove(engine: &Engine, container: &str) {
    let force = RemoveContainerOptionsBuilder::new().force(true).build();
    engine.docker.remove_container(container, Some(force)).await.unwrap();
}

#[tokio::test]
async fn the_server_is_killed_while_a_bot_is_in_its_meeting_on_docker() {
    let engine = Engine::shared().await;
    let image = engine.image(&Recipe::bot(OBEDIENT)).await;
    let mut here = Situation::new("server killed", &engine, &image, "max_slots = 2").await;
    let bot = here.user.bot(&meet_link(1)).await;
    here.user.until(&bot, "active").await;
    here.server.signal(nix::sys::signal::Signal::SIGKILL);
    until("the doctor sees that it is gone", async || {
        let (in_order, said) = here.doctor(&[]).await;
        !in_order && said.contains("BAD   running     no server runs on this database")
    })
    .await;
    here.start_again(&here.toml.clone()).await;
    let diagnosis = here.diagnose(&bot).await;
    assert_eq!(diagnosis.bot["status"], "active");
    assert!(diagnosis.overall.0, "{}", diagnosis.overall.1);
    here.user.stop(&bot).await;
    here.user.until(&bot, "completed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dockerd_is_stopped_for_twenty_seconds() {
    let mut engine = PrivateEngine::start("alone").await;
    let image = engine.image(&Recipe::bot(OBEDIENT)).await;
    let here = Situation::new("dockerd stopped for 20 s", &engine, &image, "max_slots = 5\nmin_idle = 3").await;
    let bot = here.user.bot(&meet_link(1)).await;
    here.user.until(&bot, "active").await;
    engine.stop().await;
    // The length of the outage. It does not wait for a condition.
    tokio::time::sleep(Duration::from_secs(20)).await;
    engine.start_again().await;
    here.user.until(&bot, "failed").await;
    let next = here.user.bot(&meet_link(2)).await;
    here.user.until(&next, "active").await;
    let diagnosis = here.diagnose(&bot).await;
    assert_eq!(diagnosis.ended(), json!(["failed", "interrupted", "provider"]));
    let slots = here.server.admin().get("/admin/slots").await;
    assert!(slots["slots"].as_array().unwrap().iter().all(|slot| slot["status"] != "error"), "{slots}");
}

#[tokio::test]
async fn an_idle_docker_container_is_removed() {
    let engine = Engine::shared().await;
    let image = engine.image(&Recipe::bot(OBEDIENT)).await;
    let settings = "standby = \"running\"\nmax_slots = 1\nmin_idle = 1";
    let here = Situation::new("container removed, idle", &engine, &image, settings).await;
    until("it is idle", async || {
        here.server.admin().get(&format!("/admin/slots/{}", here.slot(1))).await["slot"]["status"] == "idle"
    })
    .await;
    here.until_started().await;
    remove(&engine, &here.slot(1)).await;
    until("it is created again", async || here.log().contains("slot lost at the provider")).await;
    let bot = here.user.bot(&meet_link(1)).await;
    here.user.until(&bot, "active").await;
    let diagnosis = here.diagnose(&bot).await;
    assert!(diagnosis.has_logged("slot lost at the provider", &here.slot(1)));
}

#[tokio::test]
async fn a_busy_docker_container_is_removed() {
    let engine = Engine::shared().await;
    let image = engine.image(&Recipe::bot(OBEDIENT)).await;
    let here = Situation::new("container removed, busy", &engine, &image, "max_slots = 1").await;
    let bot = here.user.bot(&meet_link(1)).await;
    here.user.until(&bot, "active").await;
    here.until_started().await;
    remove(&engine, &here.slot(1)).await;
    here.user.until(&bot, "failed").await;
    let diagnosis = here.diagnose(&bot).await;
    assert_eq!(diagnosis.ended(), json!(["failed", "interrupted", "provider"]));
    assert!(diagnosis.error().contains("the provider no longer has it"), "{}", diagnosis.error());
    assert!(diagnosis.has_logged("bot interrupted", &bot));
    assert!(diagnosis.doctor.contains("interrupted"), "{}", diagnosis.doctor);
}

#[tokio::test]
async fn a_docker_container_is_removed_while_it_is_being_started() {
    let engine = Engine::shared().await;
    let image = engine.image(&Recipe::bot(OBEDIENT)).await;
    let here = Situation::new("container removed, starting", &engine, &image, "max_slots = 1").await;
    let bot = here.user.bot(&meet_link(1)).await;
    // The bot may be in its meeting before the start has returned.
    here.user.until(&bot, "active").await;
    remove(&engine, &here.slot(1)).await;
    here.user.until(&bot, "failed").await;
    let diagnosis = here.diagnose(&bot).await;
    assert_eq!(diagnosis.ended(), json!(["failed", "interrupted", "provider"]));
    assert!(diagnosis.error().contains("the provider no longer has it"), "{}", diagnosis.error());
}

#[tokio::test]
async fn the_docker_image_is_missing() {
    let engine = Engine::shared().await;
    let image = format!("{}/no-such-image:1", std::env::var("TEST_REGISTRY").unwrap());
    let here = Situation::new("image missing", &engine, &image, "max_slots = 1").await;
    let bot = here.user.bot(&meet_link(1)).await;
    here.user.until(&bot, "failed").await;
    let diagnosis = here.diagnose(&bot).await;
    assert_eq!(diagnosis.ended(), json!(["failed", "deploy_failed", "provider"]));
    assert!(diagnosis.error().contains("no-such-image"), "{}", diagnosis.error());
    assert!(diagnosis.doctor.contains("no-such-image"), "{}", diagnosis.doctor);
    assert!(!diagnosis.overall.0, "{}", diagnosis.overall.1);
}

#[tokio::test]
async fn the_docker_image_is_not_that_of_a_bot() {
    let engine = Engine::shared().await;
    let image = engine.image(&Recipe::script("echo I am something else; sleep 1000")).await;
    let here = Situation::new("wrong image", &engine, &image, "max_slots = 1").await;
    let bot = here.user.bot(&meet_link(1)).await;
    here.user.until(&bot, "failed").await;
    let diagnosis = here.diagnose(&bot).await;
    assert_eq!(diagnosis.ended(), json!(["failed", "no_start", "provider"]));
    assert!(diagnosis.error().contains("never called back"), "{}", diagnosis.error());
}

#[tokio::test]
async fn the_bots_program_is_not_in_the_docker_image() {
    let engine = Engine::shared().await;
    let image = engine.image(&Recipe::bot("exec /no/such/bot")).await;
    let here = Situation::new("bot missing", &engine, &image, "max_slots = 1").await;
    let bot = here.user.bot(&meet_link(1)).await;
    here.user.until(&bot, "failed").await;
    let diagnosis = here.diagnose(&bot).await;
    assert_eq!(diagnosis.ended(), json!(["failed", "crashed", "bot"]));
    assert!(diagnosis.error().contains("127"), "{}", diagnosis.error());
    assert!(diagnosis.error().contains("/no/such/bot"), "{}", diagnosis.error());
}

#[tokio::test]
async fn a_bot_on_docker_never_joins() {
    let engine = Engine::shared().await;
    let image = engine.image(&Recipe::bot("echo looking for the meeting; sleep 1000")).await;
    let here = Situation::new("bot never joins", &engine, &image, "max_slots = 1").await;
    let bot = here.user.bot(&meet_link(1)).await;
    here.user.until(&bot, "failed").await;
    let diagnosis = here.diagnose(&bot).await;
    assert_eq!(diagnosis.ended(), json!(["failed", "no_join", "bot"]));
    assert!(diagnosis.error().contains("still starting"), "{}", diagnosis.error());
    let lines = found("its last lines are shown", async || {
        let error = here.user.show_bot(&bot).await["error"].as_str().unwrap().to_owned();
        error.contains("looking for the meeting").then_some(error)
    });
    println!("later: {}", lines.await);
}

#[tokio::test]
async fn a_bot_on_docker_ignores_leave() {
    let engine = Engine::shared().await;
    let script = r#"trap '' TERM; echo '{"event": "joined"}'; while :; do sleep 1000; done"#;
    let image = engine.image(&Recipe::bot(script)).await;
    let here = Situation::new("bot ignores leave", &engine, &image, "max_slots = 1").await;
    let bot = here.user.bot(&meet_link(1)).await;
    here.user.until(&bot, "active").await;
    here.user.stop(&bot).await;
    tokio::time::timeout(Duration::from_secs(60), here.user.until(&bot, "completed")).await.unwrap();
    let diagnosis = here.diagnose(&bot).await;
    assert_eq!(diagnosis.ended(), json!(["completed", "stopped", "none"]));
    assert!(diagnosis.error().contains("killed"), "{}", diagnosis.error());
}

#[tokio::test]
async fn a_pool_on_docker_leaves_the_configuration() {
    let engine = Engine::shared().await;
    let image = engine.image(&Recipe::bot(OBEDIENT)).await;
    let mut here = Situation::new("pool removed", &engine, &image, "max_slots = 2\nmin_idle = 1").await;
    let bot = here.user.bot(&meet_link(1)).await;
    here.user.until(&bot, "active").await;
    here.server.terminate().await;
    until("it has stopped", async || here.server.has_ended()).await;
    let other = format!(
        "{QUICK}[[pool]]\nname = \"other\"\nplatform = \"google_meet\"\nprovider = \"process\"\n\
         process = {{ command = [\"true\"] }}\n"
    );
    here.start_again(&other).await;
    let diagnosis = here.diagnose(&bot).await;
    assert_eq!(diagnosis.bot["status"], "active", "the bot keeps running");
    assert!(diagnosis.has_logged("pool no longer configured", &here.pool), "{}", diagnosis.log);
    assert!(!diagnosis.overall.0 && diagnosis.overall.1.contains(&here.pool), "{}", diagnosis.overall.1);
    here.user.stop(&bot).await;
    here.user.until(&bot, "completed").await;
}

#[tokio::test]
async fn the_disk_of_the_database_is_full_while_a_bot_is_on_docker() {
    let engine = Engine::shared().await;
    let image = engine.image(&Recipe::bot(OBEDIENT)).await;
    let here = Situation::new("disk full", &engine, &image, "max_slots = 100").await;
    let bot = here.user.bot(&meet_link(1)).await;
    here.user.until(&bot, "active").await;
    here.until_started().await;
    // A write beyond the limit fails as on a full disk. The signal for it is ignored.
    here.server.limit_files(Some(here.database.largest_file() + 3_000)).await;
    let mut number = 2;
    let refused = loop {
        let asked = here.user.post("/bots", json!({"meeting_url": meet_link(number)})).await;
        number += 1;
        if asked.0.is_server_error() {
            break asked;
        }
    };
    println!("asked for another: {} {}", refused.0, refused.1);
    let said = found("the doctor sees that it is not ready", async || {
        let (_, said) = here.doctor(&[]).await;
        said.contains("BAD   ready").then_some(said)
    });
    println!("doctor meanwhile:\n{}", said.await);
    here.server.limit_files(None).await;
    until("the database accepts writes again", async || {
        here.user.request(reqwest::Method::GET, "/readyz").send().await.unwrap().status() == 200
    })
    .await;
    let diagnosis = here.diagnose(&bot).await;
    assert_eq!(diagnosis.bot["status"], "active");
    here.user.stop(&bot).await;
    here.user.until(&bot, "completed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_is_down_while_a_bot_is_on_docker() {
    let engine = Engine::shared().await;
    let image = engine.image(&Recipe::bot(OBEDIENT)).await;
    let mut postgres = PrivatePostgres::start().await;
    let mut database = Database::new(Backend::Sqlite).await;
    database.url = postgres.url();
    let here = Situation::on("database away", database, &engine, &image, "max_slots = 1").await;
    let bot = here.user.bot(&meet_link(1)).await;
    here.user.until(&bot, "active").await;
    postgres.stop().await;
    let (status, refused) = here.user.post("/bots", json!({"meeting_url": meet_link(2)})).await;
    assert!(status.is_server_error(), "{refused}");
    let (in_order, said) = here.doctor(&[]).await;
    assert!(!in_order, "{said}");
    assert!(said.contains("it is unknown whether a server runs"), "{said}");
    println!("asked for another: {status} {refused}\ndoctor meanwhile:\n{said}");
    let is_ready = async || here.user.request(reqwest::Method::GET, "/readyz").send().await.unwrap().status() == 200;
    // The answer describes the last write. The server must notice the outage before it can notice its end.
    until("it is not ready", async || !is_ready().await).await;
    postgres.start_again().await;
    until("it is ready again", is_ready).await;
    let diagnosis = here.diagnose(&bot).await;
    assert_eq!(diagnosis.bot["status"], "active");
    here.user.stop(&bot).await;
    here.user.until(&bot, "completed").await;
}
