//! An agent without a required setting names the setting.

use crate::agent::{Agent, bare, for_bot};
use crate::server::Server;

#[tokio::test]
async fn malformed_data_is_named_and_nothing_is_run() {
    for (data, says) in [
        ("{\"bot_id\":", "BOT_DATA is not JSON: EOF"),
        ("[]", "BOT_DATA is not a JSON object"),
        ("{\"callback_url\":\"http://127.0.0.1:1\",\"heartbeat_interval_ms\":1000}", "BOT_DATA has no `bot_id`"),
    ] {
        let mut command = bare();
        command.env("BOT_DATA", data);
        let ended = Agent::start(command, &[], "echo ran").end().await;
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""));
        assert!(ended.stderr.contains(says), "{}", ended.stderr);
    }
}

#[tokio::test]
async fn an_agent_without_bot_data_and_without_a_server_names_the_missing_settings() {
    let ended = Agent::start(bare(), &[], "echo ran").end().await;
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""));
    assert!(ended.stderr.contains("set BOT_DATA") && ended.stderr.contains("GREENROOM_URL"), "{}", ended.stderr);
}

#[tokio::test]
async fn an_agent_without_a_command_says_how_to_give_one() {
    let server = Server::start().await;
    let ended = Agent::start_exactly(for_bot(&server.bot()), &["--leave-grace", "1s"]).end().await;
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("-- command"), "{}", ended.stderr);
}

#[tokio::test]
async fn help_and_version_are_printed() {
    let help = Agent::start_exactly(bare(), &["--help"]).end().await;
    assert_eq!(help.code, Some(0));
    assert!(help.stdout.contains("--leave-grace") && help.stdout.contains("BOT_DATA"));
    let version = Agent::start_exactly(bare(), &["-V"]).end().await;
    assert_eq!(version.stdout, concat!("greenroom-agent ", env!("CARGO_PKG_VERSION"), "\n"));
}
