//! Screenshots: the file that a bot names is sent as it was then, and nothing else waits for it.

use serde_json::{Value, json};

use crate::agent::{Agent, Gate, for_bot};
use crate::runner::{for_runner, start};
use crate::server::{Call, Server};

/// Shell functions of a bot: write an image that ends with a word, and name a file as a screenshot.
const CAMERA: &str = r#"
    png() { { printf '\211PNG\r\n\032\n'; printf '%s' "$2"; } > "$1"; }
    jpeg() { { printf '\377\330\377\340'; printf '%s' "$2"; } > "$1"; }
    shoot() { echo "{\"event\":\"screenshot\",\"path\":\"$1\"}"; }
"#;

fn is_screenshot(call: &Call) -> bool {
    call.name == "screenshot"
}

fn warnings(server: &Server) -> Vec<String> {
    let log = server.calls().into_iter().rfind(|call| call.name == "log").expect("the log was sent").body;
    log["warnings"].as_array().unwrap().iter().map(|warning| warning.as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn the_file_that_the_bot_names_is_sent_with_its_kind_and_as_it_was_when_it_was_named() {
    let server = Server::start().await;
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (Gate::new().await, Gate::new().await);
    // A line that comes back shows that the agent has taken the one before it.
    let script = format!(
        r#"{CAMERA}
        cd sub && png one.png first; shoot "$PWD/one.png"; echo taken; {first}
        rm one.png; cd ..; jpeg two second; shoot two; echo again; {second}
        "#,
        first = first.pass(),
        second = second.pass()
    );
    std::fs::create_dir(folder.path().join("sub")).unwrap();
    let mut command = for_bot(&server.bot());
    command.current_dir(folder.path());
    let agent = Agent::start(command, &[], &script);
    agent.until_printed("taken").await;
    first.open().await;
    agent.until_printed("again").await;
    std::fs::write(folder.path().join("two"), "overwritten").unwrap();
    server
        .until("the second", |state| {
            state.calls.iter().any(|call| call.body["image"].as_str().is_some_and(|end| end.ends_with("second")))
        })
        .await;
    second.open().await;
    let ended = agent.end().await;
    assert_eq!(ended.stdout, "taken\nagain\n", "an event is not log");
    let last = server.screenshots().pop().unwrap();
    assert_eq!((last.0.as_str(), last.1.ends_with("second")), ("jpeg", true));
    assert!(server.screenshots().iter().all(|(kind, image)| (kind == "png") == image.ends_with("first")));
    server.no_mistakes();
}

#[tokio::test]
async fn a_bot_on_a_runner_names_a_file_in_its_own_folder() {
    let server = Server::start().await;
    let folder = tempfile::tempdir().unwrap();
    let script = format!("{CAMERA} png last.png here; shoot last.png; exit 0");
    let agent = start(for_runner(&server, folder.path()), &[], &script);
    server.claim(&server.bot());
    server.until_called("release").await;
    agent.signal("-TERM").await;
    agent.end().await;
    assert!(server.screenshots()[0].1.ends_with("here"), "{:?}", server.screenshots());
    server.no_mistakes();
}

#[tokio::test]
async fn a_file_that_is_no_screenshot_is_a_warning_in_the_bots_log_and_the_bot_goes_on() {
    let server = Server::start().await;
    let folder = tempfile::tempdir().unwrap();
    // Nobody ever opens the other end of the pipe.
    let script = format!(
        r#"{CAMERA}
        mkfifo pipe; echo text > page.html; head -c 524281 /dev/zero > big; png large.png "$(tr '\0' x < big)"
        for name in missing.png page.html large.png pipe .; do shoot $name; done
        echo '{{"event":"joined"}}'
        "#
    );
    let mut command = for_bot(&server.bot());
    command.current_dir(folder.path());
    let ended = Agent::start(command, &[], &script).end().await;
    assert_eq!(ended.code, Some(0));
    let warnings = warnings(&server);
    let expected = [
        ("missing.png", "it cannot be read: No such file or directory"),
        ("page.html", "it is neither a PNG nor a JPEG image"),
        ("large.png", "it is larger than 512 KiB"),
        ("pipe", "it is not a regular file"),
        (".", "it is not a regular file"),
    ];
    assert_eq!(warnings.len(), expected.len());
    for (warning, (name, why)) in warnings.iter().zip(expected) {
        assert!(warning.starts_with(&format!("screenshot {name:?} not sent: {why}")), "{warning}");
        assert!(ended.stderr.contains(warning), "{}", ended.stderr);
    }
    assert_eq!(
        (server.screenshots().len(), server.said_names()),
        (0, vec!["started".into(), "joined".into(), "exited".into()])
    );
    server.no_mistakes();
}

#[tokio::test]
async fn the_last_screenshot_of_a_bot_that_ends_at_once_comes_before_its_end() {
    let server = Server::start().await;
    let folder = tempfile::tempdir().unwrap();
    let script = format!("{CAMERA} for n in 1 2 3 4 5; do png s.png last-$n; shoot s.png; done; exit 4");
    let mut command = for_bot(&server.bot());
    command.current_dir(folder.path());
    assert_eq!(Agent::start(command, &[], &script).end().await.code, Some(4));
    assert!(server.screenshots().pop().unwrap().1.ends_with("last-5"), "{:?}", server.screenshots());
    assert_eq!(server.exited(), json!([4, null]));
    // The server would have refused one after the end.
    server.no_mistakes();
}

#[tokio::test]
async fn a_thousand_screenshots_take_little_memory_hold_nothing_back_and_the_newest_is_sent() {
    let server = Server::start().await;
    let folder = tempfile::tempdir().unwrap();
    let gate = Gate::new().await;
    server.tell_always("screenshot", Some((503, json!({}))));
    let script = format!(
        r#"{CAMERA}
        png big.png "$(head -c 500000 /dev/zero | tr '\0' x)"; png last.png newest
        n=0; while [ $n -lt 1000 ]; do shoot big.png; n=$((n+1)); done
        shoot last.png
        echo '{{"event":"joined"}}'
        echo '{{"event":"transcript","segments":[{{"text":"a"}}]}}'
        {}"#,
        gate.pass()
    );
    let mut command = for_bot(&server.bot());
    command.current_dir(folder.path());
    let agent = Agent::start(command, &[], &script);
    server.until_called("transcript").await;
    assert_eq!(server.said_names(), ["started", "joined", "transcript"]);
    let peak = agent.memory_peak();
    assert!(peak < 100_000, "{peak} KiB for images of 488 KiB");
    server.until("a screenshot is refused", |state| state.calls.iter().any(is_screenshot)).await;
    server.tell_always("screenshot", None);
    server
        .until("one is accepted", |state| state.calls.iter().any(|call| is_screenshot(call) && call.status == 200))
        .await;
    gate.open().await;
    agent.end().await;
    let accepted = server.screenshots();
    assert!(accepted.len() == 1 && accepted[0].1.ends_with("newest"), "{accepted:?}");
    server.no_mistakes();
}

#[tokio::test]
async fn a_screenshot_that_never_arrives_does_not_hold_back_the_end() {
    for status in [500, 0] {
        let server = Server::start().await;
        let folder = tempfile::tempdir().unwrap();
        server.tell_always("screenshot", Some((status, json!({}))));
        let mut command = for_bot(&server.bot());
        command.current_dir(folder.path());
        let ended = Agent::start(command, &[], &format!("{CAMERA} png s.png s; shoot s.png; exit 7")).end().await;
        assert_eq!((ended.code, server.exited()), (Some(7), json!([7, null])), "{status}");
        assert!(ended.stderr.contains("the last screenshot was not sent"), "{status}: {}", ended.stderr);
        server.no_mistakes();
    }
}

#[tokio::test]
async fn a_screenshot_that_the_server_does_not_want_is_a_warning_and_one_after_the_assignment_ends_the_bot() {
    let refusal = |code: &str| -> Value { json!({"code": code, "detail": "so it is"}) };
    let server = Server::start().await;
    let folder = tempfile::tempdir().unwrap();
    server.script("screenshot", 404, refusal("not_found"), None);
    let leaves = format!("{CAMERA} png s.png s; shoot s.png; read -r line; echo \"$line\"");
    let mut command = for_bot(&server.bot());
    command.current_dir(folder.path());
    let agent = Agent::start(command, &[], &leaves);
    agent.until_logged("screenshot not stored: 404 Not Found not_found: so it is").await;
    agent.signal("-TERM").await;
    agent.end().await;
    assert_eq!(warnings(&server), ["screenshot not stored: 404 Not Found not_found: so it is"]);
    server.no_mistakes();

    let server = Server::start().await;
    server.script("screenshot", 409, refusal("stale_connection"), None);
    let mut command = for_bot(&server.bot());
    command.current_dir(folder.path());
    let ended = Agent::start(command, &[], &leaves).end().await;
    assert!(ended.stdout.contains("\"action\":\"leave\""), "{}", ended.stdout);
    assert_eq!(server.said_names(), ["started"]);
    server.no_mistakes();
}
