//! `greenroom aws` and the doctor, as an operator uses them.

use crate::support::{Backend, Cloud, Database, greenroom};

async fn configured(config: &str) -> Database {
    let database = Database::new(Backend::Sqlite).await;
    std::fs::write(database.folder.path().join("greenroom.toml"), config).unwrap();
    database
}

#[tokio::test]
async fn the_doctor_says_what_is_missing_on_moto_and_init_makes_it() {
    let cloud = Cloud::new().await;
    let database =
        configured(&cloud.pool("meet", "max_slots = 4\n\nclasses = { large = { max = 2, spot_max = 1 } }")).await;
    let (well, stdout, _) = greenroom(&database, &["doctor"]).await;
    assert!(!well && stdout.contains("greenroom aws init"), "{stdout}");
    let (well, described, stderr) = greenroom(&database, &["aws", "describe"]).await;
    assert!(well && described.contains(&cloud.group("large-on-demand")), "{described}{stderr}");
    for _ in 0..2 {
        let (well, stdout, stderr) = greenroom(&database, &["aws", "init", "--pool", "meet"]).await;
        assert!(well && stdout.contains(&cloud.group("large-spot")), "{stdout}{stderr}");
    }
    let (_, stdout, _) = greenroom(&database, &["doctor"]).await;
    assert!(!stdout.contains("greenroom aws init"), "{stdout}");
    assert!(stdout.contains("at most 3 runners"), "{stdout}");
    assert!(stdout.contains("for 4 slots: raise the `max` of a class, or lower `max_slots`"), "{stdout}");
}

#[tokio::test]
async fn the_policies_allow_exactly_the_resources_of_a_pool() {
    let pool = "[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\nprovider = \"ec2\"\n[pool.ec2]\n\
                region = \"eu-west-1\"\nqueue_prefix = \"green-\"\ntable = \"runners\"\nclasses = [\"large\"]\n";
    let database = configured(pool).await;
    for (arguments, action) in
        [(&["aws", "policy"][..], "dynamodb:PutItem"), (&["aws", "policy", "--init"], "dynamodb:CreateTable")]
    {
        let (well, stdout, stderr) = greenroom(&database, arguments).await;
        assert!(well && stdout.contains(action) && stdout.contains(":green-large"), "{stdout}{stderr}");
        let policy: serde_json::Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!(policy["Version"], "2012-10-17");
    }
    let (well, stdout, _) = greenroom(&database, &["aws", "describe", "--cloudformation"]).await;
    assert!(well && serde_json::from_str::<serde_json::Value>(&stdout).is_ok(), "{stdout}");
}

#[tokio::test]
async fn a_runner_token_needs_a_pool_of_runners_and_an_installation_that_was_started() {
    let pools = "[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\nprovider = \"process\"\n";
    let database = configured(pools).await;
    let (well, _, stderr) = greenroom(&database, &["aws", "runner-token", "--pool", "meet"]).await;
    assert!(!well && stderr.contains("the pool meet has the provider process, not ec2"), "{stderr}");
    let (well, _, stderr) = greenroom(&database, &["aws", "init"]).await;
    assert!(!well && stderr.contains("no pool has the provider ec2"), "{stderr}");
    let ec2 = "[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\nprovider = \"ec2\"\n[pool.ec2]\n\
               region = \"eu-west-1\"\nqueue_prefix = \"green-\"\ntable = \"runners\"\n";
    let database = configured(ec2).await;
    let (well, _, stderr) = greenroom(&database, &["aws", "runner-token", "--pool", "other"]).await;
    assert!(!well && stderr.contains("the configuration has no pool other"), "{stderr}");
    let (well, _, stderr) = greenroom(&database, &["aws", "runner-token", "--pool", "meet"]).await;
    assert!(!well && stderr.contains("the first start of the server creates it"), "{stderr}");
}
