//! `login`, `logout`, `whoami`: profiles in a file that only its owner reads.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::json;

use crate::support::{ADMIN_TOKEN, Backend, CommandLine, Database, Process};

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn login_keeps_profiles_that_only_the_owner_can_read_and_their_tokens_go_to_their_servers_only() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(3).await;
    // Without a token in the environment.
    let mut cli = CommandLine::new(&server.url, "");
    let ran = cli.run_with_input(&["login"], &format!("{}\n", user.token())).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(!ran.out.contains(user.token()) && !ran.err.contains(user.token()), "{ran:?}");
    let folder = cli.home.path().join(".config/greenroom");
    let file = folder.join("profiles.toml");
    assert_eq!((mode(&folder), mode(&file)), (0o700, 0o600));
    let shown: serde_json::Value = cli.run(&["whoami", "--json"]).await.json();
    assert_eq!((&shown["kind"], &shown["profile"]), (&json!("user"), &json!("default")));
    assert_eq!(shown["max_concurrent_bots"], 3);

    // A second profile becomes the current one, and a wrong token changes nothing.
    let login = ["login", "--profile", "operator", "--token-stdin"];
    let ran = cli.run_with_input(&login, ADMIN_TOKEN).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    let before = std::fs::read_to_string(&file).unwrap();
    let ran = cli.run_with_input(&login, "gra_wrong").await;
    assert_eq!(ran.code, 4, "{ran:?}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), before);
    assert_eq!(cli.run(&["whoami", "--json"]).await.json()["kind"], "operator");
    assert_eq!(cli.run(&["whoami", "--profile", "default", "--json"]).await.json()["kind"], "user");
    assert_eq!(cli.run(&["whoami", "--profile", "nobody"]).await.code, 5);
    let mut files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().file_name()).collect();
    files.sort();
    assert_eq!(files, ["profiles.lock", "profiles.toml"], "no other file is left");
    assert_eq!(mode(&folder.join("profiles.lock")), 0o600);

    // Another server does not get the token of the profile.
    let ran = cli.run(&["whoami", "--server", "http://127.0.0.1:1"]).await;
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(ran.err.contains("no token for the server http://127.0.0.1:1"), "{ran:?}");

    // A profile that is named on the line is used as it is, whatever a shell has exported.
    let address = std::mem::replace(&mut cli.server, "http://127.0.0.1:1".to_owned());
    cli.token = "gra_wrong".to_owned();
    assert_eq!(cli.run(&["whoami", "--profile", "default", "--json"]).await.json()["kind"], "user");
    assert_eq!(cli.run_with_input(&login, ADMIN_TOKEN).await.code, 0);
    assert_eq!(cli.run(&["whoami", "--profile", "operator", "--token", "gra_other"]).await.code, 4);
    assert_eq!(cli.run(&["whoami"]).await.code, 7, "without the flag, the variables count");
    (cli.server, cli.token) = (address, String::new());

    cli.ok(&["logout"]).await;
    assert!(!std::fs::read_to_string(&file).unwrap().contains(ADMIN_TOKEN));
    assert_eq!(cli.run(&["whoami", "--json"]).await.json()["kind"], "user");
    cli.ok(&["logout", "--all"]).await;
    assert_eq!(cli.run(&["whoami"]).await.code, 4);
}

#[tokio::test]
async fn logins_at_the_same_time_lose_no_profile() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let cli = CommandLine::new(&server.url, "");
    let names: Vec<String> = (0..8).map(|number| format!("profile-{number}")).collect();
    let logins = names.iter().map(async |name| cli.run_with_input(&["login", "--profile", name], ADMIN_TOKEN).await);
    for ran in futures_util::future::join_all(logins).await {
        assert_eq!(ran.code, 0, "{ran:?}");
    }
    let kept = std::fs::read_to_string(cli.home.path().join(".config/greenroom/profiles.toml")).unwrap();
    assert!(names.iter().all(|name| kept.contains(name)), "{kept}");
}

#[tokio::test]
async fn flags_go_before_or_after_the_command_and_win_over_the_environment() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let elsewhere = CommandLine::new("http://127.0.0.1:1", "gra_wrong");
    for arguments in [
        ["--server", &server.url, "--token", ADMIN_TOKEN, "pools", "list"],
        ["pools", "list", "--server", &server.url, "--token", ADMIN_TOKEN],
        ["pools", "--server", &server.url, "--token", ADMIN_TOKEN, "list"],
    ] {
        assert!(elsewhere.ok(&arguments).await.contains("google-meet"));
    }
    // A command that would ignore the flag refuses it.
    assert_eq!(elsewhere.run(&["--server", &server.url, "config", "check"]).await.code, 2);
    assert_eq!(elsewhere.run(&["pools", "remove", "x", "--server", &server.url]).await.code, 2);
    // The variables of the command line are no settings of the server.
    assert_eq!(elsewhere.run(&["config", "check"]).await.code, 0);
}
