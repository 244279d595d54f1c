//! Every command through a pipe: text for people, JSON for programs, ids that are shortened, text that is hostile.

use reqwest::StatusCode;
use serde_json::json;

use crate::support::{
    ADMIN_TOKEN, Backend, CommandLine, Database, Process, ServerFixture, in_repository, meet_link, process_pool,
};

/// Joins, and leaves when it is asked to.
const BOT: &str = r#"
    echo 'a line of the log'
    echo '{"event": "joined"}'
    while read -r command; do
        case $command in *leave*) exit 0 ;; esac
    done
"#;

async fn fixture() -> ServerFixture {
    let settings = "max_slots = 3\nmin_idle = 1\nstandby = \"running\"";
    ServerFixture::open(Backend::Sqlite, &process_pool("meet", settings, BOT)).await
}

/// The commands that the dashboard offers to copy, as it writes them. `BOT`, `SLOT` and `USER` stand for real ones.
const COPIED: [&str; 9] = [
    "greenroom bots start 'https://meet.google.com/abc-defg-xyz' --user USER --name 'Notes of Ada' --priority 50",
    "greenroom bots config BOT '{\"language\":\"fr\"}'",
    "greenroom bots stop BOT",
    "greenroom pools set meet max_slots=2 min_idle=1",
    "greenroom pools probe meet",
    "greenroom keepers run sync",
    "greenroom slots recover SLOT",
    "greenroom slots drain SLOT",
    "greenroom slots delete SLOT",
];

#[tokio::test]
async fn each_command_that_the_web_pages_copy_works_as_it_is_written() {
    let fixture = fixture().await;
    let cli = CommandLine::new(&fixture.server.url, ADMIN_TOKEN);
    let bot = fixture.active(1).await;
    let (bot, slot) = (bot["id"].as_str().unwrap(), bot["slot"].as_str().unwrap());
    let users = fixture.admin.get("/admin/users").await;
    let user = users["users"][0]["id"].as_str().unwrap();
    for line in COPIED {
        let line = line.replace("BOT", bot).replace("SLOT", slot).replace("USER", user);
        let ran = cli.shell(&line).await;
        // A slot that is not in error cannot be recovered: the command exists, and the server refuses.
        let refused = line.contains("slots recover") && ran.code == 1 && ran.err.contains("request id");
        assert!(ran.code == 0 || refused, "{line}: {ran:?}");
        assert!(!ran.out.is_empty() || refused, "{line}: {ran:?}");
    }
    assert_eq!(fixture.admin.get("/admin/pools/meet").await["pool"]["max_slots"], 2);
}

/// A command that is new in the dashboard must be in the list above.
#[test]
fn the_web_pages_copy_no_command_that_is_not_tried() {
    let mut found = 0;
    for folder in ["web/views", "web/components", "web/lib"] {
        for file in std::fs::read_dir(in_repository(folder)).unwrap() {
            let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
            for copied in text.split(['`', '"']).filter(|part| part.starts_with("greenroom ")) {
                found += 1;
                // Up to the first part that is not fixed.
                let fixed = copied.split("${").next().unwrap().trim_end();
                assert!(COPIED.iter().any(|tried| tried.starts_with(fixed)), "{copied} is not tried");
            }
        }
    }
    assert!(found >= 10, "{found}");
}

#[tokio::test]
async fn every_command_prints_text_and_the_answer_of_the_api_as_json() {
    let fixture = fixture().await;
    let (operator, user) = (
        CommandLine::new(&fixture.server.url, ADMIN_TOKEN),
        CommandLine::new(&fixture.server.url, fixture.user.token()),
    );
    let bot = fixture.active(1).await;
    let (bot, slot) = (bot["id"].as_str().unwrap(), bot["slot"].as_str().unwrap());
    // Command, who may use it, a part of its text, a pointer into its JSON.
    let commands: &[(&[&str], bool, &str, &str)] = &[
        (&["bots", "list"], true, bot, "/bots/0/id"),
        (&["bots", "list", "--open"], true, "active", "/bots/0/status"),
        (&["bots", "list", "--status", "active", "--platform", "google_meet"], true, slot, "/bots/0/slot"),
        (&["bots", "show", bot], true, "google_meet", "/bot/status"),
        (&["bots", "explain", bot], true, "STEP", "/summary"),
        (&["bots", "events", bot], true, "created", "/events/0/kind"),
        (&["bots", "logs", bot], true, "a line of the log", "/lines/0/text"),
        (&["bots", "transcript", bot], true, "", "/segments"),
        (&["bots", "config", bot, "{\"a\": 1}"], true, "new configuration", "/bot/config/a"),
        (&["pools", "list"], false, "meet", "/pools/0/name"),
        (&["pools", "show", "meet"], false, "max_slots", "/pool/max_slots"),
        (&["pools", "set", "meet", "max_slots=3"], false, "max_slots", "/pool/max_slots"),
        (&["slots", "list"], false, slot, "/slots/0/name"),
        (&["slots", "list", "--pool", "meet", "--status", "busy"], false, bot, "/slots/0/bot_id"),
        (&["slots", "show", slot], false, bot, "/bots/0/id"),
        (&["slots", "explain", slot], false, "provider", "/summary"),
        (&["queue"], false, "", "/entries"),
        (&["deployments"], false, "GATE", "/max_concurrent"),
        (&["users", "list"], false, "ada@example.com", "/users/0/email"),
        (&["users", "show", "ada@example.com"], false, "Ada", "/user/name"),
        (&["users", "set", "ada@example.com", "min_priority=10"], false, "10", "/user/min_priority"),
        (&["keepers", "list"], false, "warm_buffer", "/keepers/0/name"),
        (&["keepers", "run", "sync"], false, "sync has run", ""),
        (&["attention"], false, "", "/items"),
        (&["audit"], false, "user_created", "/entries/0/action"),
        (&["whoami"], true, "signed in as", "/kind"),
        (&["health"], true, "ready", "/status"),
        (&["open", bot], true, "/#/bots/", "/url"),
    ];
    for (arguments, is_for_users, part, pointer) in commands {
        for cli in [&operator, &user] {
            let text = cli.run(arguments).await;
            if std::ptr::eq(cli, &raw const user) && !is_for_users {
                assert_eq!(text.code, 4, "{arguments:?}: {text:?}");
                continue;
            }
            assert_eq!(text.code, 0, "{arguments:?}: {text:?}");
            assert!(text.out.contains(part), "{arguments:?}: {text:?}");
            assert!(!text.out.contains('\u{1b}') && !text.err.contains('\u{1b}'), "colour in a pipe: {text:?}");
            let json: Vec<&str> = arguments.iter().copied().chain(["--json"]).collect();
            let answer = cli.run(&json).await.json();
            assert!(answer.pointer(pointer).is_some(), "{arguments:?}: {answer}");
        }
    }
    let followed = operator.run(&["deployments", "--follow", "--json"]).await.json_lines();
    assert_eq!(followed.last().unwrap()["entries"], json!([]));
    // Several at once; a failure does not keep the others from being done.
    let other = fixture.active(2).await;
    let ran = user.run(&["bots", "stop", other["id"].as_str().unwrap(), "ffffffff", bot, "--json"]).await;
    assert_eq!(ran.code, 5, "{ran:?}");
    assert_eq!(ran.json_lines().len(), 2, "{ran:?}");
    fixture.user.until(bot, "completed").await;
    assert_eq!(user.ok(&["bots", "stop", bot, "--wait"]).await.lines().count(), 1);
    // All are asked to leave before the command waits for the first.
    let (first, second) = (fixture.active(3).await, fixture.active(4).await);
    let stop = ["bots", "stop", first["id"].as_str().unwrap(), second["id"].as_str().unwrap(), "--wait"];
    let text = user.ok(&stop).await;
    assert!(text.lines().take(2).all(|line| line.ends_with(" is leaving.")), "{text}");
    assert_eq!(text.matches("  completed").count(), 2, "{text}");
    // A pool is changed by its whole name only.
    operator.ok(&["pools", "show", "me"]).await;
    for part in ["me", "eet"] {
        assert_eq!(operator.run(&["pools", "set", part, "max_slots=3"]).await.code, 5);
    }

    let key = operator.ok(&["users", "add", "bob@example.com", "--max-bots", "1"]).await;
    let bob = operator.with(key.trim());
    bob.ok(&["bots", "list"]).await;
    let new = operator.ok(&["users", "key", "bob@example.com"]).await;
    assert_eq!(bob.run(&["bots", "list"]).await.code, 4);
    operator.with(new.trim()).ok(&["bots", "list"]).await;
    // Of two users, an operator must name one.
    assert_eq!(operator.run(&["bots", "start", &meet_link(5)]).await.code, 2);
    let started = operator.run(&["bots", "start", &meet_link(5), "--user", "bob@example.com", "--json"]).await.json();
    assert_eq!(started["bot"]["priority"], 100);
    for (thing, route) in
        [("slots", "/#/slots"), ("pool-meet-001", "/#/slots/pool-meet-001"), ("meet", "/#/pools/meet")]
    {
        assert_eq!(operator.ok(&["open", thing]).await.trim(), format!("{}{route}", operator.server));
    }
}

#[tokio::test]
async fn ids_may_be_shortened_while_they_are_unique() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(10).await;
    let (first, second) = (user.bot(&meet_link(1)).await, user.bot(&meet_link(2)).await);
    let shared = first.bytes().zip(second.bytes()).take_while(|(left, right)| left == right).count();
    for token in [user.token(), ADMIN_TOKEN] {
        let cli = CommandLine::new(&server.url, token);
        for id in [&first, &second] {
            let shown = cli.run(&["bots", "show", &id[..=shared], "--json"]).await.json();
            assert_eq!(shown["bot"]["id"], json!(id));
            cli.ok(&["bots", "show", &id.to_uppercase()[..=shared]]).await;
        }
        let ran = cli.run(&["bots", "stop", &first[..shared]]).await;
        assert_eq!(ran.code, 2, "{ran:?}");
        assert!(ran.err.contains(&first) && ran.err.contains(&second), "{ran:?}");
    }
    // Another user's bots are no candidates.
    let body = json!({"email": "bob@example.com", "name": "Bob", "max_concurrent_bots": 1});
    let (status, bob) = server.admin().post("/admin/users", body).await;
    assert_eq!(status, StatusCode::CREATED);
    let bob = CommandLine::new(&server.url, bob["api_key"].as_str().unwrap());
    assert_eq!(bob.run(&["bots", "show", &first[..=shared]]).await.code, 5);
    let operator = CommandLine::new(&server.url, ADMIN_TOKEN);
    operator.ok(&["slots", "show", "meet-001"]).await;
    for part in ["eet-001", "pool-meet-001"] {
        assert_eq!(operator.run(&["slots", "delete", part]).await.code, 5, "{part}");
    }
    // The limit applies after the filter.
    let zoom = user.bot("https://zoom.us/j/81234567890").await;
    user.bot(&meet_link(3)).await;
    for token in [user.token(), ADMIN_TOKEN] {
        let cli = CommandLine::new(&server.url, token);
        let list = ["bots", "list", "--open", "--limit", "1", "--json", "--platform"];
        let of = async |platform| cli.run(&[&list[..], &[platform]].concat()).await.json();
        let listed = of("zoom").await;
        assert_eq!((&listed["bots"][0]["id"], &listed["next_cursor"]), (&json!(zoom), &json!(null)));
        let listed = of("google_meet").await;
        assert_eq!(listed["bots"].as_array().unwrap().len(), 1);
        assert!(listed["next_cursor"].is_string(), "{listed}");
    }
    let ran = operator.run(&["slots", "show", "pool-google-meet-00"]).await;
    assert_eq!(ran.code, 2, "{ran:?}");
}

#[tokio::test]
async fn hostile_text_of_a_bot_never_reaches_the_terminal_as_it_is() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(10).await;
    let name = "Ada \u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}31m\u{7f}\u{202e}";
    let body = json!({"meeting_url": meet_link(1), "bot_display_name": name, "metadata": {"note": name}});
    let (status, answer) = user.post("/bots", body).await;
    let cli = CommandLine::new(&server.url, user.token());
    // A server may refuse such a name; then it is in the refusal.
    let bot = match status {
        StatusCode::CREATED => answer["bot"]["id"].as_str().unwrap().to_owned(),
        _ => user.ask(json!({"meeting_url": meet_link(1), "metadata": {"note": name}})).await["id"]
            .as_str()
            .unwrap()
            .into(),
    };
    let is_clean = |text: &str| !text.contains(|c: char| c != '\n' && c.is_control() || c == '\u{202e}');
    for arguments in [
        vec!["bots", "list"],
        vec!["bots", "show", &bot],
        vec!["bots", "show", &bot, "--json"],
        vec!["bots", "explain", &bot],
        vec!["bots", "start", &meet_link(2), "--name", name],
        vec!["bots", "show", "\u{1b}[2J"],
    ] {
        let ran = cli.run(&arguments).await;
        assert!(is_clean(&ran.out) && is_clean(&ran.err), "{arguments:?}: {ran:?}");
    }
    // As JSON the value is the same.
    let shown = cli.run(&["bots", "show", &bot, "--json"]).await.json();
    assert_eq!(shown["bot"]["metadata"]["note"], name);
}

#[tokio::test]
async fn a_reader_that_leaves_early_ends_a_command_quietly() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(1_000).await;
    for number in 0..100 {
        user.bot(&meet_link(number)).await;
    }
    let cli = CommandLine::new(&server.url, user.token());
    for command in ["bots list --all", "bots list --all --json", "bots start --help", "openapi", "man bots start"] {
        let ran = cli.shell(&format!("set -o pipefail; greenroom {command} | head -c 1 >/dev/null")).await;
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{command}");
    }
}

#[tokio::test]
async fn completions_know_commands_and_the_ids_pools_and_slots_of_the_server() {
    let fixture = fixture().await;
    fixture.until_slots(1, 0).await;
    let bot = fixture.active(1).await;
    let id = bot["id"].as_str().unwrap();
    let operator = CommandLine::new(&fixture.server.url, ADMIN_TOKEN);
    // As bash asks: the index of the word and the words.
    let complete = async |cli: &CommandLine, words: &[&str]| {
        let mut command = cli.command();
        command.env("GREENROOM_COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string());
        command.env("_CLAP_COMPLETE_COMP_TYPE", "9").env("_CLAP_COMPLETE_SPACE", "true").env("_CLAP_IFS", "\n");
        let output = command.arg("--").args(words).output().await.unwrap();
        assert!(output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(complete(&operator, &["greenroom", "bots", "st"]).await.contains("start"));
    assert!(complete(&operator, &["greenroom", "bots", "stop", ""]).await.contains(id));
    assert!(complete(&operator, &["greenroom", "bots", "stop", &id[..8]]).await.contains(id));
    assert!(complete(&operator, &["greenroom", "slots", "drain", "pool-"]).await.contains("pool-meet-001"));
    assert!(complete(&operator, &["greenroom", "pools", "show", "m"]).await.contains("meet"));
    assert!(complete(&operator, &["greenroom", "keepers", "run", "warm"]).await.contains("warm_buffer"));
    assert!(complete(&operator, &["greenroom", "bots", "list", "--status", "com"]).await.contains("completed"));
    // The server on the line counts, and a server that does not answer is silence.
    let elsewhere = CommandLine::new("http://127.0.0.1:1", ADMIN_TOKEN);
    let server = &fixture.server.url;
    let found = complete(&elsewhere, &["greenroom", "pools", "show", "--server", server, "m"]).await;
    assert!(found.contains("meet"), "{found}");
    assert!(!complete(&elsewhere, &["greenroom", "pools", "show", "m"]).await.contains("meet"));
    for shell in ["bash", "zsh", "fish"] {
        assert!(operator.ok(&["completions", shell]).await.contains("GREENROOM_COMPLETE"));
    }
    // The script, in a real bash.
    let script = "source <(greenroom completions bash); complete -p greenroom";
    let ran = operator.shell(script).await;
    assert!(ran.code == 0 && ran.out.contains("greenroom"), "{ran:?}");
}

#[tokio::test]
async fn man_pages_are_printed_and_written_for_every_command() {
    let cli = CommandLine::new("http://127.0.0.1:1", "");
    assert!(cli.ok(&["man", "bots", "start"]).await.contains("idempotency"));
    assert_eq!(cli.run(&["man", "no", "command"]).await.code, 2);
    cli.ok(&["man", "--out", "pages"]).await;
    let pages = cli.home.path().join("pages");
    for page in ["greenroom.1", "greenroom-bots.1", "greenroom-bots-start.1", "greenroom-pools-remove.1"] {
        assert!(pages.join(page).exists(), "{page}");
    }
}
