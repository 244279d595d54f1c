//! Logs of bots in services of Swarm, jobs of Nomad and applications of Coolify, if no agent has sent them. The server
//! asks the provider while the bot runs, and stores the log before the slot is cleared.

use serde_json::{Value, json};

use crate::support::{
    Backend, COOLIFY_TOKEN, Client, CoolifyFake, CoolifySettings, DockerFixture, NomadFake, Recipe, ServerFixture,
    Swarm, found, meet_link, until,
};

/// Nothing sends callbacks here, so short deadlines end the bot soon.
const IMPATIENT: &str = "[sweeper]\ninterval = \"1s\"\nno_start = \"5s\"\n";

/// Waits until a bot's log has these lines, while it runs and after it has failed. Returns the log after its end.
async fn has_lines(user: &Client, bot: &str, lines: &[&str]) -> Value {
    has_lines_that(user, bot, |texts| texts == lines).await
}

/// The same with any condition on the lines.
async fn has_lines_that(user: &Client, bot: &str, fit: impl Fn(&[String]) -> bool) -> Value {
    let log = async || user.get(&format!("/bots/{bot}/logs")).await;
    let texts = |log: &Value| -> Vec<String> {
        log["lines"].as_array().unwrap().iter().map(|line| line["text"].as_str().unwrap().to_owned()).collect()
    };
    until("its output is in the log while it runs", async || {
        let log = log().await;
        assert_eq!(user.show_bot(bot).await["status"], "deploying", "the log is {log}");
        fit(&texts(&log))
    })
    .await;
    let ended = user.until(bot, "failed").await;
    assert_eq!(ended["reason"], "no_start");
    // The slot is cleared after the bot's end, and the log is stored before.
    until("its slot is cleared", async || {
        user.show_bot(bot).await["error"].as_str().is_some_and(|error| error.contains("Last lines:"))
    })
    .await;
    let log = log().await;
    assert!(fit(&texts(&log)), "{log}");
    log
}

#[tokio::test]
async fn the_log_of_a_bot_on_a_swarm_is_the_services_where_no_agent_sends_it() {
    let swarm = Swarm::single().await;
    let script = "trap 'exit 0' TERM; echo first line; echo no camera >&2; echo second line; sleep 1000 & wait";
    let image = swarm.image(&Recipe::script(script)).await;
    let fixture = DockerFixture::start(swarm.manager(), "swarm", &image, "max_slots = 1", IMPATIENT).await;
    let bot = fixture.user.bot(&meet_link(1)).await;
    // Docker reads the two outputs separately: only the lines of one of them have an order.
    let fit = |texts: &[String]| {
        let (error, output): (Vec<_>, Vec<_>) = texts.iter().partition(|text| *text == "no camera");
        error.len() == 1 && output == ["first line", "second line"]
    };
    let log = has_lines_that(&fixture.user, &bot, fit).await;
    assert!(log["lines"].as_array().unwrap().iter().all(|line| line["at"].is_string()), "{log}");
}

#[tokio::test]
async fn the_log_of_a_bot_on_nomad_is_the_tasks_where_no_agent_sends_it() {
    let nomad = NomadFake::start().await;
    let config = format!(
        "{IMPATIENT}[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\nprovider = \"nomad\"\nmax_slots = 1\n\
         [pool.nomad]\naddress = \"{}\"\ntoken = \"{}\"\nimage = \"bot:1\"\n",
        nomad.url(),
        nomad.token()
    );
    let fixture = ServerFixture::open(Backend::Sqlite, &config).await;
    let bot = fixture.user.ask(json!({"meeting_url": meet_link(1)})).await;
    let slot = "pool-meet-001";
    found("its task runs", async || nomad.running(slot)).await;
    nomad.set_logs(slot, "first line\nsecond line\n");
    nomad.set_error_logs(slot, "no camera\n");
    let log = has_lines(&fixture.user, bot["id"].as_str().unwrap(), &["first line", "second line", "no camera"]).await;
    assert_eq!(log["lines"][0]["at"], Value::Null, "Nomad stores no times");
    assert_eq!(nomad.violations(), Vec::<String>::new());
}

#[tokio::test]
async fn the_log_of_a_bot_on_coolify_is_the_applications_where_no_agent_sends_it() {
    let fake = CoolifyFake::start(CoolifySettings::default()).await;
    let config = format!(
        "{IMPATIENT}[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\nprovider = \"coolify\"\nmax_slots = 1\n\
         [pool.coolify]\napi_url = \"{}/api/v1\"\napi_token = \"{COOLIFY_TOKEN}\"\nproject_uuid = \"{}\"\n\
         server_uuid = \"{}\"\nenvironment_name = \"production\"\nimage = \"team/bot:1\"\n",
        fake.url,
        CoolifyFake::PROJECT,
        CoolifyFake::SERVER,
    );
    let fixture = ServerFixture::open(Backend::Sqlite, &config).await;
    let bot = fixture.user.ask(json!({"meeting_url": meet_link(1)})).await;
    let lines = ["pool-meet-001 has started", "waiting for work"];
    has_lines(&fixture.user, bot["id"].as_str().unwrap(), &lines).await;
    assert_eq!(fake.violations(), Vec::<String>::new());
}
