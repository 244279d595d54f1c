//! `greenroom pools remove` and `greenroom down` for pools of runners. Slots and bots end, machines with a bot end too,
//! and idle machines stay in their groups.

use serde_json::json;

use super::Ec2Fixture;
use crate::pool_removal::{other_pool, pools, start_again};
use crate::support::{Database, Machine, greenroom, meet_link, until};

/// A server with two slots, one of which has a bot on the first of two machines.
async fn fixture() -> (Ec2Fixture, [Machine; 2], String) {
    let fixture = Ec2Fixture::open("max_slots = 2\n\nheartbeat_interval = \"1s\"\nhealthy_within = \"3s\"").await;
    let instances = fixture.cloud.grow("large-on-demand", 2).await;
    let busy = Machine::up(&fixture.admin, &fixture.token, &instances[0]).await;
    let bot = fixture.user.bot(&meet_link(1)).await;
    busy.take().await;
    fixture.user.until(&bot, "active").await;
    let idle = Machine::up(&fixture.admin, &fixture.token, &instances[1]).await;
    (fixture, [busy, idle], bot)
}

async fn stored_slots(database: &Database) -> usize {
    database.reader().await.pairs("SELECT name, status FROM slots").await.len()
}

async fn run(database: &Database, arguments: &[&str]) -> (bool, String) {
    let (well, stdout, stderr) = greenroom(database, arguments).await;
    (well, stdout + &stderr)
}

#[tokio::test]
async fn a_pool_of_runners_on_moto_that_left_the_configuration_is_removed_and_the_machine_of_its_bot_ends() {
    let (Ec2Fixture { cloud, server, database, user, .. }, [busy, idle], bot) = fixture().await;
    let (server, _) = start_again(server, &database, &other_pool()).await;
    let (well, said) = run(&database, &["pools", "remove", "meet", "--force"]).await;
    assert!(!well && said.contains("The pool meet (ec2) has 1 slot and 1 bot, which the command ends."), "{said}");

    // The stored address of the provider does not work.
    let settings = "UPDATE pools SET settings = replace(settings, 'http://', 'http://127.0.0.1:1/')";
    database.execute(settings).await;
    let (well, said) = run(&database, &["pools", "remove", "meet", "--yes", "--force"]).await;
    assert!(!well && said.contains("1 could not be removed"), "{said}");
    assert_eq!(stored_slots(&database).await, 1, "the remaining slot is still in the store");
    assert_eq!(pools(&server).await, ["other", "meet"]);
    database.execute("UPDATE pools SET settings = replace(settings, 'http://127.0.0.1:1/', 'http://')").await;

    let (well, said) = run(&database, &["pools", "remove", "meet", "--yes", "--force"]).await;
    assert!(well && said.contains("Removed 1 slot and the pool meet"), "{said}");
    assert_eq!((stored_slots(&database).await, pools(&server).await), (0, vec!["other".to_owned()]));
    // The machine has not confirmed that its bot is gone, so it is not used again.
    until("its machine is gone", async || !cloud.machines("large-on-demand").await.contains(&busy.instance)).await;
    assert!(cloud.machines("large-on-demand").await.contains(&idle.instance), "an idle machine stays in its group");
    let bot = user.on(&server.url).show_bot(&bot).await;
    assert_eq!((&bot["status"], &bot["reason"]), (&json!("completed"), &json!("stopped")), "{bot}");
}

#[tokio::test]
async fn down_ends_the_bots_on_moto_and_says_that_idle_machines_stay() {
    let (Ec2Fixture { cloud, server, database, .. }, [busy, idle], _) = fixture().await;
    server.terminate().await;
    assert!(server.wait().await);
    let (well, said) = run(&database, &["down"]).await;
    assert!(!well && said.contains("This command ends 1 bot and removes 1 slot of 1 pool:"), "{said}");
    assert_eq!(stored_slots(&database).await, 1, "nothing is removed without --yes");
    let (well, said) = run(&database, &["down", "--yes"]).await;
    assert!(well && said.contains("Ended 1 bot and removed 1 slot."), "{said}");
    assert!(said.contains("The Auto Scaling groups of the pool meet keep their machines"), "{said}");
    assert!(!said.contains("no more slots of this installation"), "{said}");
    assert_eq!(stored_slots(&database).await, 0);
    until("its machine is gone", async || !cloud.machines("large-on-demand").await.contains(&busy.instance)).await;
    assert!(cloud.machines("large-on-demand").await.contains(&idle.instance));
}
