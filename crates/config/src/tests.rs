//! Tests of the configuration, with valid and invalid settings.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use secrecy::ExposeSecret;

use super::ec2::Ec2Config;
use super::*;

fn sources(file: &str, variables: &[(&str, &str)], flags: &[&str]) -> (Sources, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("greenroom.toml");
    std::fs::write(&path, file).unwrap();
    let sources = Sources {
        file: Some(path),
        variables: variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
    };
    (sources, folder)
}

fn load(file: &str, variables: &[(&str, &str)], flags: &[&str]) -> Result<Config, Vec<String>> {
    let (sources, _folder) = sources(file, variables, flags);
    Config::load(&sources).map_err(|complaints| complaints.0)
}

#[test]
fn with_nothing_configured_the_defaults_serve() {
    let config = load("", &[], &[]).unwrap();
    assert_eq!(config.listen, "127.0.0.1:7700");
    assert_eq!(config.database.expose_secret(), "sqlite:greenroom.db");
    assert_eq!(config.deadlines, Deadlines::default());
    let names: Vec<_> = config.pools.iter().map(|pool| pool.name.as_str()).collect();
    assert_eq!(names, ["google-meet", "teams", "zoom"]);
}

#[test]
fn the_limits_of_the_server_have_defaults_and_can_be_set() {
    let limits = load("", &[], &[]).unwrap().limits;
    assert_eq!(limits, LimitsConfig { connections: 15_000, streams_per_key: 100, waiting_requests: 10_000 });
    let file = "[limits]\nconnections = 5\nstreams_per_key = 6";
    let limits = load(file, &[("GREENROOM_LIMITS__WAITING_REQUESTS", "7")], &[]).unwrap().limits;
    assert_eq!(limits, LimitsConfig { connections: 5, streams_per_key: 6, waiting_requests: 7 });
    let complaints = load("[limits]\nconnections = 0\nstream_per_key = 1", &[], &[]).unwrap_err();
    assert!(complaints.iter().any(|one| one.contains("`limits.connections`")), "{complaints:?}");
    assert!(complaints.iter().any(|one| one.contains("did you mean `streams_per_key`?")), "{complaints:?}");
    assert_eq!(complaints.len(), 2, "{complaints:?}");
}

#[test]
fn the_figures_of_hours_are_kept_for_400_days_or_as_set_or_for_ever() {
    let kept = |file: &str| load(file, &[], &[]).map(|config| config.retention.stats);
    assert_eq!(kept(""), Ok(Some(Duration::from_hours(400 * 24))));
    assert_eq!(kept("[retention]\nstats = \"48h\""), Ok(Some(Duration::from_hours(48))));
    assert_eq!(kept("[retention]\nstats = \"0s\""), Ok(None));
    for wrong in ["stats = \"47h\"", "stats = 400", "stat = \"400d\""] {
        let complaints = kept(&format!("[retention]\n{wrong}")).unwrap_err();
        assert!(complaints.len() == 1 && complaints[0].contains("stats"), "{complaints:?}");
    }
}

#[test]
fn nothing_of_a_bot_is_kept_longer_than_the_bot() {
    let kept = |file: &str| load(&format!("[retention]\n{file}"), &[], &[]).map(|config| config.retention);
    let day = Duration::from_hours(24);
    let default = kept("").unwrap();
    assert_eq!(default, crate::RetentionConfig::default());
    assert_eq!((default.bots, default.transcripts), (Some(90 * day), Some(90 * day)));
    assert_eq!((default.idempotency_keys, default.failures), (Some(day), Some(30 * day)));
    // What is not set follows the bots.
    let short = kept("bots = \"1h\"").unwrap();
    let hour = Some(Duration::from_hours(1));
    assert_eq!((short.transcripts, short.idempotency_keys, short.failures), (hour, hour, Some(30 * day)));
    let forever = kept("bots = \"0s\"\ntranscripts = \"0s\"\nidempotency_keys = \"0s\"\ndeliveries = \"0s\"").unwrap();
    assert_eq!((forever.bots, forever.transcripts, forever.idempotency_keys), (None, None, None));
    assert_eq!(kept("bots = \"0s\"").unwrap().transcripts, Some(90 * day));
    for (file, key) in [
        ("bots = \"3d\"\ntranscripts = \"4d\"", "retention.transcripts"),
        ("transcripts = \"0s\"", "retention.transcripts"),
        ("bots = \"1h\"\nidempotency_keys = \"2h\"", "retention.idempotency_keys"),
        ("idempotency_keys = \"0s\"", "retention.idempotency_keys"),
        ("deliveries = 14", "retention.deliveries"),
    ] {
        let complaints = kept(file).unwrap_err();
        assert!(complaints.len() == 1 && complaints[0].contains(key), "{file}: {complaints:?}");
    }
}

#[test]
fn the_environment_overrides_the_file_and_a_flag_overrides_both() {
    let file = "listen = \"127.0.0.1:1\"\n[deploy]\nmax_concurrent = 1";
    let config = load(file, &[("GREENROOM_DEPLOY__MAX_CONCURRENT", "2")], &[]).unwrap();
    assert_eq!((config.listen.as_str(), config.max_concurrent_deployments), ("127.0.0.1:1", 2));
    let config =
        load(file, &[("GREENROOM_DEPLOY__MAX_CONCURRENT", "2")], &["deploy.max_concurrent=3", "listen=[::1]:5"]);
    let config = config.unwrap();
    assert_eq!((config.listen.as_str(), config.max_concurrent_deployments), ("[::1]:5", 3));
}

#[test]
fn a_pull_may_stall_for_two_minutes_by_default() {
    assert_eq!(load("", &[], &[]).unwrap().pull_stall, Duration::from_secs(120));
    let config = load("[deploy]\npull_stall = \"30s\"", &[], &[]).unwrap();
    assert_eq!(config.pull_stall, Duration::from_secs(30));
    let complaints = load("[deploy]\npull_stall = \"0s\"", &[], &[]).unwrap_err();
    assert!(complaints[0].contains("`deploy.pull_stall`"), "{complaints:?}");
}

#[test]
fn every_error_is_reported_at_once_with_its_key_and_source() {
    let file = "
        listn = \"127.0.0.1:1\"
        [queue]
        default_timeout = \"20m\"
        [sweeper]
        heartbeat_lost = 5
        no_join = \"soon\"
        [deploy]
        max_concurrent = 0
    ";
    let complaints = load(file, &[("GREENROOM_HARTBEAT__INTERVAL", "1s")], &["nonsense"]).unwrap_err();
    let all = complaints.join("\n");
    for part in [
        "unknown key `listn` in ",
        "did you mean `listen`?",
        "queue.default_timeout (20m) is longer than queue.max_timeout (10m)",
        "`sweeper.heartbeat_lost` in ",
        "`sweeper.no_join` in ",
        "`deploy.max_concurrent` in ",
        "unknown key `hartbeat` from the environment variable GREENROOM_HARTBEAT__INTERVAL; did you mean `heartbeat`?",
        "--set nonsense has no `=`",
    ] {
        assert!(all.contains(part), "`{part}` is not in:\n{all}");
    }
    assert_eq!(complaints.len(), 7, "{all}");
}

#[test]
fn the_names_of_older_deployments_are_honoured_below_the_new_ones() {
    let variables = [
        ("MAX_POOL_SIZE", "7"),
        ("DEFAULT_QUEUE_TIMEOUT", "60000"),
        ("MAX_QUEUE_TIMEOUT", "120000"),
        ("POLL_INTERVAL", "500"),
        ("SLOT_RECOVERY_INTERVAL_MS", "30000"),
        ("SLOT_MAX_RECOVERY_ATTEMPTS", "5"),
        ("DEPLOYMENT_QUEUE_MAX_CONCURRENT", "9"),
        ("GREENROOM_DEPLOY__MAX_CONCURRENT", "8"),
    ];
    let config = load("", &variables, &[]).unwrap();
    assert_eq!(config.pools[0].max_slots, 7);
    assert_eq!(config.deadlines.queue_default, Duration::from_secs(60));
    assert_eq!(config.deadlines.queue_max, Duration::from_secs(120));
    assert_eq!(config.deadlines.queue_poll, Duration::from_millis(500));
    assert_eq!(config.deadlines.recovery_interval, Duration::from_secs(30));
    assert_eq!(config.max_recovery_attempts, 5);
    assert_eq!(config.max_concurrent_deployments, 8);
}

fn has_token(pool: &PoolConfig) -> bool {
    matches!(&pool.provider, ProviderConfig::Coolify(config) if config.api_token.expose_secret() == "t")
}

#[test]
fn a_coolify_pool_takes_its_address_and_token_from_the_environment() {
    let file = "
        [[pool]]
        name = \"meet\"
        platform = \"google_meet\"
        provider = \"coolify\"
        coolify = { project_uuid = \"p\", server_uuid = \"s\", environment_name = \"e\", image = \"bot\" }
    ";
    let missing = load(file, &[], &[]).unwrap_err();
    assert_eq!(missing.len(), 2, "{missing:?}");
    assert!(missing[0].contains("`pool.0.coolify.api_url` is missing"));
    let variables = [("COOLIFY_API_URL", "http://coolify/api/v1"), ("COOLIFY_API_TOKEN", "t")];
    assert!(has_token(&load(file, &variables, &[]).unwrap().pools[0]));
    // Also if the pool itself comes from the environment. A setting under its own name takes precedence.
    let mut variables = variables.to_vec();
    variables.extend([
        ("GREENROOM_POOL__0__NAME", "meet"),
        ("GREENROOM_POOL__0__PLATFORM", "google_meet"),
        ("GREENROOM_POOL__0__PROVIDER", "coolify"),
        ("GREENROOM_POOL__0__MAX_SLOTS", "5"),
        ("MAX_POOL_SIZE", "9"),
        (
            "GREENROOM_POOL__0__COOLIFY",
            "{ project_uuid = \"p\", server_uuid = \"s\", environment_name = \"e\", image = \"b\" }",
        ),
    ]);
    let config = load("", &variables, &[]).unwrap();
    assert!(has_token(&config.pools[0]));
    assert_eq!(config.pools[0].max_slots, 5);
}

#[test]
fn an_invalid_pool_is_refused_with_each_of_its_errors() {
    let file = "
        [[pool]]
        name = \"Meet Pool\"
        platform = \"skype\"
        provider = \"docker\"
        max_slots = 2
        min_idle = 3
        nomad = { address = \"x\" }
        [[pool]]
        name = \"zoom\"
        platform = \"zoom\"
        provider = \"process\"
        process = { command = [\"bot\"] }
        [[pool]]
        name = \"zoom\"
        platform = \"zoom\"
        provider = \"process\"
    ";
    let all = load(file, &[], &[]).unwrap_err().join("\n");
    for part in [
        "`pool.0.name` is `Meet Pool`",
        "`pool.0.platform` in ",
        "must be one of google_meet, teams, zoom",
        "`pool.0.min_idle` (3) must not be more than `max_slots` (2)",
        "`pool.0.docker` is missing; the provider docker needs `docker = { … }`",
        "unknown key `pool.0.nomad`",
        "`pool`: two pools have the `name` `zoom`",
    ] {
        assert!(all.contains(part), "`{part}` is not in:\n{all}");
    }
}

#[test]
fn a_pool_can_be_set_from_the_environment_alone() {
    let variables = [
        ("GREENROOM_POOL__0__NAME", "teams"),
        ("GREENROOM_POOL__0__PLATFORM", "teams"),
        ("GREENROOM_POOL__0__PROVIDER", "process"),
        ("GREENROOM_POOL__0__PROCESS__COMMAND", "[\"greenroom-agent\", \"--\", \"my-bot\"]"),
        ("GREENROOM_POOL__0__MAX_SLOTS", "12"),
    ];
    let config = load("", &variables, &[]).unwrap();
    assert_eq!((config.pools.len(), config.pools[0].max_slots), (1, 12));
}

#[test]
fn a_variable_with_the_suffix_file_names_a_file_that_holds_the_value() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("database");
    std::fs::write(&file, "postgres://greenroom:secret@db/greenroom\n").unwrap();
    let path = file.to_str().unwrap();
    let config = load("", &[("GREENROOM_DATABASE_FILE", path)], &[]).unwrap();
    assert_eq!(config.database.expose_secret(), "postgres://greenroom:secret@db/greenroom");

    let twice = load("", &[("GREENROOM_DATABASE_FILE", path), ("GREENROOM_DATABASE", "sqlite:x.db")], &[]);
    let twice = twice.unwrap_err().join("; ");
    assert!(twice.contains("GREENROOM_DATABASE_FILE cannot be used: GREENROOM_DATABASE is set too"), "{twice}");
    let missing = load("", &[("GREENROOM_ADMIN_TOKEN_FILE", "/nowhere/token")], &[]).unwrap_err().join("; ");
    assert!(missing.contains("GREENROOM_ADMIN_TOKEN_FILE cannot be used: /nowhere/token cannot be read"), "{missing}");
    let unknown = load("", &[("GREENROOM_DATABSE_FILE", path)], &[]).unwrap_err().join("; ");
    assert!(unknown.contains("unknown key `databse`"), "{unknown}");
    assert!(!unknown.contains("secret"), "{unknown}");
}

#[test]
fn a_file_that_is_not_toml_is_refused_with_its_line() {
    let complaints = load("listen = \"x:1\"\nqueue = [[", &[], &[]).unwrap_err();
    assert!(complaints[0].contains("is not valid TOML at line 2"), "{complaints:?}");
}

#[test]
fn a_configuration_file_that_was_named_must_exist() {
    let sources = Sources { file: Some("no/such/file.toml".into()), ..Sources::default() };
    let complaints = Config::load(&sources).unwrap_err();
    assert!(complaints.0[0].contains("no/such/file.toml cannot be read"));
}

#[test]
fn what_is_shown_of_the_configuration_holds_no_secret() {
    let file = "
        database = \"postgres://user:hunter2@db.example/greenroom\"
        redis = \"redis://:hunter2@cache:6379\"
        admin_token = \"hunter2\"
        [[pool]]
        name = \"zoom\"
        platform = \"zoom\"
        provider = \"nomad\"
        nomad = { address = \"http://nomad\", image = \"bot\", token = \"hunter2\" }
    ";
    let config = load(file, &[], &[]).unwrap();
    assert!(!format!("{config:?}").contains("hunter2"));
    assert_eq!(config.database_shown(), "postgres://db.example/greenroom");
    let config = load("database = \"postgres://h:5432/db?user=x&password=hunter2\"", &[], &[]).unwrap();
    assert_eq!(config.database_shown(), "postgres://h:5432/db");
}

#[test]
fn the_address_of_a_provider_has_no_password_because_metrics_show_it() {
    for pool in [
        "provider = \"nomad\"\nnomad = { address = \"https://user:hunter2@nomad\", image = \"bot\" }",
        "provider = \"docker\"\ndocker = { host = \"tcp://user:hunter2@engine:2375\", image = \"bot\" }",
    ] {
        let file = format!("[[pool]]\nname = \"zoom\"\nplatform = \"zoom\"\n{pool}");
        let wrong = load(&file, &[], &[]).map(drop).unwrap_err().join("\n");
        assert!(wrong.contains("must have no user name or password") && !wrong.contains("hunter2"), "{wrong}");
    }
    let file = "[[pool]]\nname = \"zoom\"\nplatform = \"zoom\"\nprovider = \"docker\"\n\
                docker = { host = \"unix:///run/docker@home.sock\", image = \"bot\" }";
    assert!(load(file, &[], &[]).is_ok());
}

#[test]
fn the_name_in_a_certificate_is_a_name_and_for_addresses_with_certificates() {
    let load = |address: &str, name: &str| {
        let file = format!(
            "[[pool]]\nname = \"zoom\"\nplatform = \"zoom\"\nprovider = \"nomad\"\n\
             nomad = {{ address = \"{address}\", image = \"bot\", tls_server_name = \"{name}\" }}"
        );
        load(&file, &[], &[]).map(drop).map_err(|complaints| complaints.join("\n"))
    };
    assert_eq!(load("https://10.0.0.1:4646", "server.global.nomad"), Ok(()));
    let wrong = load("https://10.0.0.1:4646", "10.0.0.2").unwrap_err();
    assert!(wrong.contains("not a server name such as server.global.nomad"), "{wrong}");
    let wrong = load("http://10.0.0.1:4646", "server.global.nomad").unwrap_err();
    assert!(wrong.contains("must begin with https://"), "{wrong}");
}

#[test]
fn the_variables_of_a_slot_and_of_kubernetes_are_not_taken_for_settings() {
    let variables = [("GREENROOM_URL", "http://x"), ("GREENROOM_SLOT", "pool-zoom-001"), ("GREENROOM_SLOT_TOKEN", "t")];
    assert!(load("", &variables, &[]).is_ok());
    // The variables that Kubernetes sets for a service with this name.
    let variables = [
        ("GREENROOM_SERVICE_HOST", "10.0.0.1"),
        ("GREENROOM_SERVICE_PORT_HTTP", "7700"),
        ("GREENROOM_PORT", "tcp://10.0.0.1:7700"),
        ("GREENROOM_PORT_7700_TCP_ADDR", "10.0.0.1"),
    ];
    assert!(load("", &variables, &[]).is_ok());
    for (name, value) in [("GREENROOM_PORT", "8080"), ("GREENROOM_PORTS", "1"), ("GREENROOM_SERVICE_FOO", "1")] {
        assert!(load("", &[(name, value)], &[]).is_err(), "{name} is nobody's");
    }
}

#[test]
fn more_than_ten_pools_can_be_set_from_the_environment() {
    let variables: Vec<(String, String)> = (0..12)
        .flat_map(|number| {
            [("NAME", format!("p{number}")), ("PLATFORM", "zoom".to_owned()), ("PROVIDER", "process".to_owned())]
                .map(|(key, value)| (format!("GREENROOM_POOL__{number}__{key}"), value))
        })
        .collect();
    let variables: Vec<_> = variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let config = load("", &variables, &[]).unwrap();
    assert_eq!(config.pools.iter().map(|pool| pool.name.as_str()).next_back(), Some("p11"));
}

#[test]
fn an_older_name_for_a_time_takes_milliseconds_and_says_so() {
    let complaints = load("", &[("DEFAULT_QUEUE_TIMEOUT", "5m")], &[]).unwrap_err();
    assert!(complaints[0].contains("DEFAULT_QUEUE_TIMEOUT is `5m`, but must be a number of milliseconds"));
}

fn ec2(settings: &str) -> Result<Ec2Config, String> {
    let file = format!(
        "[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\nprovider = \"ec2\"\nmax_slots = 20\nmin_idle = 3\n\
         [pool.ec2]\n{settings}"
    );
    let config = load(&file, &[], &[]).map_err(|complaints| complaints.join("\n"))?;
    match config.pools.into_iter().next().unwrap().provider {
        ProviderConfig::Ec2(config) => Ok(config),
        other => panic!("{other:?}"),
    }
}

const PLACE: &str = "region = \"eu-west-1\"\ntable = \"greenroom\"\nqueue_prefix = \"greenroom-\"\n";

#[test]
fn a_pool_of_runners_has_the_usual_classes_and_times_unless_it_says_otherwise() {
    let config = ec2(PLACE).unwrap();
    assert_eq!(config.pace, aws::Pace::default());
    let shown: Vec<_> = config.classes.iter().map(|class| (class.name.as_str(), class.cpu, class.min_idle)).collect();
    assert_eq!(shown, [("large", 2, 3), ("xlarge", 4, 0), ("2xlarge", 8, 0), ("4xlarge", 16, 0)]);
    let first = &config.classes[0];
    assert_eq!((first.max, first.spot_max, first.mem), (20, 20, 4096));
    assert_eq!(first.instance_types, ["c6i.large", "m6i.large", "r6i.large"]);
    let settings = config.settings("installation");
    assert_eq!((settings.queue("large").as_str(), settings.installation.as_str()), ("greenroom-large", "installation"));
}

#[test]
fn classes_are_a_list_of_known_ones_or_say_what_they_are() {
    let listed = ec2(&format!("{PLACE}classes = [\"xlarge\", \"large\"]")).unwrap();
    let names: Vec<_> = listed.classes.iter().map(|class| class.name.as_str()).collect();
    assert_eq!(names, ["large", "xlarge"], "the smallest first");
    let toml = format!(
        "{PLACE}[pool.ec2.classes]\nlarge = {{ max = 4, spot_max = 0, min_idle = 0 }}\n\
         video = {{ cpu = 8, mem = 16384, instance_types = [\"c7g.2xlarge\"], min_idle = 1 }}"
    );
    let classes = ec2(&toml).unwrap().classes;
    assert_eq!((classes[0].max, classes[0].spot_max, classes[0].min_idle, classes[0].cpu), (4, 0, 0, 2));
    assert_eq!((classes[1].name.as_str(), classes[1].cpu, classes[1].max, classes[1].min_idle), ("video", 8, 20, 1));
}

#[test]
fn every_error_of_a_pool_of_runners_is_reported_at_once() {
    let all =
        ec2("endpoint = \"localhost\"\nqueue_prefix = \"green room.\"\ntable = \"g\"\nsubnets = []\nregoin = \"x\"\n\
         healthy_within = \"5s\"\nannouncement = \"60s\"\nredelivery = \"1500ms\"\nclaim_timeout = 5\nrounds = 0\n\
         classes = [\"large\", \"huge\"]")
        .unwrap_err();
    for part in [
        "`pool.0.ec2.region` is missing",
        "unknown key `pool.0.ec2.regoin`",
        "`pool.0.ec2.endpoint` must begin with http:// or https://",
        "`pool.0.ec2.queue_prefix` is `green room.`, but may have only letters",
        "`pool.0.ec2.table` is `g`, but must have 3 to 255 letters",
        "`pool.0.ec2.subnets` in ",
        "`pool.0.ec2.healthy_within` (5s) must be longer than `pool.0.ec2.heartbeat_interval` (5s)",
        "`pool.0.ec2.announcement` in ",
        "is 60s, but must be from 20s to 50s",
        "`pool.0.ec2.redelivery` must be in whole seconds",
        "`pool.0.ec2.claim_timeout` in ",
        "`pool.0.ec2.rounds` in ",
        "`pool.0.ec2.classes.huge` is not a known class (large, xlarge, 2xlarge, 4xlarge, ",
    ] {
        assert!(all.contains(part), "`{part}` is not in:\n{all}");
    }
}

#[test]
fn an_invalid_class_of_runners_is_refused() {
    for (classes, part) in [
        ("{}", "must not be empty"),
        ("\"large\"", "must be a list of classes"),
        ("{ large = { min_idle = 2, max = 1 } }", "classes.large.min_idle` (2) must not be more than `max` (1)"),
        ("{ large = { max = 2 } }", "classes.large.min_idle` (3) must not be more than `max` (2)"),
        ("{ large = { instance_types = [\"c* \"] } }", "must be a list of names, such as [\"c6i.large\"]"),
        ("{ large = { instance_types = [\"c*\"] } }", "has `c*`, which is not an instance type"),
        (
            "{ \"a.b\" = { cpu = 1, mem = 1, instance_types = [\"x\"] } }",
            "`greenroom-a.b`, which must have at most 80 letters",
        ),
        ("{ large = { maximum = 2 } }", "unknown key `pool.0.ec2.classes.large.maximum`"),
    ] {
        let errors = ec2(&format!("{PLACE}classes = {classes}")).unwrap_err();
        assert!(errors.contains(part), "`{part}` is not in:\n{errors}");
    }
}

#[test]
fn pools_that_share_their_runners_must_agree_on_their_settings() {
    let pool = |name: &str, more: &str| {
        format!("[[pool]]\nname = \"{name}\"\nplatform = \"zoom\"\nprovider = \"ec2\"\n[pool.ec2]\n{PLACE}{more}\n")
    };
    let both = |more: &str| load(&(pool("one", "") + &pool("other", more)), &[], &[]);
    assert!(both("classes = [\"large\", \"8xlarge\"]").is_ok());
    assert!(both("queue_prefix = \"elsewhere-\"").is_err(), "said twice");
    let errors = both("idle_timeout = \"1m\"").unwrap_err().join("\n");
    assert!(
        errors.contains("`one` and `other` share their runners, but differ in a time limit or `rounds`"),
        "{errors}"
    );
    let errors = both("classes = { large = { cpu = 3 } }").unwrap_err().join("\n");
    assert!(errors.contains("differ in `cpu`, `mem` or `instance_types` of the class large"), "{errors}");
    // Two pools share only one of the two: each would treat the other's machines as its own.
    for (key, other_key) in [("table", "queue_prefix"), ("queue_prefix", "table")] {
        let elsewhere: String = PLACE
            .lines()
            .map(|line| match line.starts_with(key) {
                true => format!("{key} = \"elsewhere\"\n"),
                false => format!("{line}\n"),
            })
            .collect();
        let other = pool("other", "").replace(PLACE, &elsewhere);
        let errors = load(&(pool("one", "") + &other), &[], &[]).unwrap_err().join("\n");
        assert!(errors.contains("`table` or `queue_prefix`"), "{other_key}: {errors}");
    }
    // Values that follow from the pools' sizes add up. Configured values stay.
    let (mut one, other) = (ec2(PLACE).unwrap(), ec2(PLACE).unwrap());
    one.merge(&other);
    assert_eq!((one.classes.len(), one.classes[0].max, one.classes[0].min_idle), (4, 40, 6));
    one.merge(&ec2(&format!("{PLACE}classes = {{ 8xlarge = {{}}, large = {{ max = 25, min_idle = 1 }} }}")).unwrap());
    let large = &one.classes[0];
    assert_eq!((one.classes.len(), large.max, large.spot_max, large.min_idle), (5, 25, 60, 1));
    one.merge(&other);
    assert_eq!((one.classes[0].max, one.classes[0].spot_max), (25, 80));
}

fn prewarmed(settings: &str) -> Result<Option<pool::Prewarm>, String> {
    let file = format!("[[pool]]\nname = \"p\"\nplatform = \"zoom\"\nprovider = \"process\"\n{settings}");
    load(&file, &[], &[]).map(|config| config.pools[0].prewarm).map_err(|complaints| complaints.join("\n"))
}

#[test]
fn a_pool_is_prewarmed_only_if_it_says_so_and_has_times_for_it() {
    assert_eq!(prewarmed("standby = \"running\"").unwrap(), None);
    assert_eq!(prewarmed("ready_timeout = \"5s\"\nmax_warm_age = \"1m\"").unwrap(), None);
    let of = |ready, age: Option<u64>| {
        Some(pool::Prewarm { ready_timeout: Duration::from_secs(ready), max_warm_age: age.map(Duration::from_secs) })
    };
    assert_eq!(prewarmed("standby = \"running\"\nprewarm = true").unwrap(), of(60, Some(1800)));
    let times = "standby = \"running\"\nprewarm = true\nready_timeout = \"5s\"\nmax_warm_age = \"0s\"";
    assert_eq!(prewarmed(times).unwrap(), of(5, None));
    let ec2 = "[[pool]]\nname = \"p\"\nplatform = \"zoom\"\nprovider = \"ec2\"\nprewarm = true\n\
               ec2 = { region = \"eu-west-1\", queue_prefix = \"q\", table = \"runners\" }";
    assert_eq!(load(ec2, &[], &[]).unwrap().pools[0].prewarm, of(60, Some(1800)), "runners have no standby");
}

#[test]
fn prewarm_without_a_hot_slot_or_with_impossible_times_is_refused() {
    for (settings, expected) in [
        ("prewarm = true", "`pool.0.prewarm` needs `standby = \"running\"`"),
        ("standby = \"running\"\nprewarm = \"yes\"", "`pool.0.prewarm`"),
        ("standby = \"running\"\nprewarm = true\nready_timeout = \"0s\"", "`pool.0.ready_timeout`"),
        ("standby = \"running\"\nprewarm = true\nready_timeout = \"5m\"", "shorter than `sweeper.no_start`"),
    ] {
        let error = prewarmed(settings).unwrap_err();
        assert!(error.contains(expected), "{settings}: {error}");
    }
}
