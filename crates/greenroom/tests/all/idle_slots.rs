//! Idle hot slots: surplus slots are stopped, and the others get a new image.

use std::time::Duration;

use domain::SlotStatus;
use greenroom::keepers::RunReport;
use greenroom::store::{PoolRow, SlotRow};
use rstest::rstest;

use crate::support::{Backend, Call, Database, DeploymentFixture, Process, found, pool, process_pool, until};

async fn all(fixture: &DeploymentFixture) -> Vec<SlotRow> {
    fixture.core.store.slots(None, None).await.unwrap()
}

/// Advances agents and bots until this many slots are idle, and nothing else exists.
async fn until_idle(fixture: &DeploymentFixture, count: usize) {
    until("all are idle", async || {
        fixture.advance_bots(&[]).await;
        let slots = all(fixture).await;
        slots.len() == count && slots.iter().all(|slot| slot.status == SlotStatus::Idle)
    })
    .await;
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn surplus_hot_slots_are_stopped_and_started_again_for_bots(#[case] backend: Backend) {
    let meet = PoolRow { hot: true, min_idle: 1, max_slots: 3, idle_timeout_ms: Some(60_000), ..pool("meet") };
    let fixture = DeploymentFixture::new(backend, [meet]).await;
    until_idle(&fixture, 1).await;
    for number in 0..2 {
        fixture.core.reserved(number).await;
        fixture.keep("warm_buffer").await;
        fixture.gate_is_free().await;
        until("an agent waits", async || {
            fixture.advance_bots(&[]).await;
            all(&fixture).await.iter().any(|slot| slot.status == SlotStatus::Idle)
        })
        .await;
    }
    let count = all(&fixture).await.len();
    assert!(count > 1);
    until_idle(&fixture, count).await;
    assert_eq!(fixture.keep("warm_buffer").await.counts["stopped"], 0);
    fixture.core.clock.advance(Duration::from_secs(61));
    let stopped = count as u64 - 1;
    let report = RunReport::of([("made", 0), ("let_go", 0), ("stopped", stopped), ("replaced", 0)]);
    assert_eq!(fixture.keep("warm_buffer").await, report);
    fixture.keep("deployment").await;
    until_idle(&fixture, count).await;
    let slots = all(&fixture).await;
    assert_eq!(slots.iter().filter(|slot| slot.stopped).count(), count - 1);
    let runs = fixture.fake.has();
    assert!(slots.iter().all(|slot| runs[&slot.name] != slot.stopped), "{runs:?}");
    assert!(!fixture.fake.calls().iter().any(|call| matches!(call, Call::Delete(_))), "the slots are not deleted");
    // All slots are correct.
    fixture.core.clock.advance(Duration::from_secs(11));
    for keeper in ["sync", "recovery", "warm_buffer"] {
        assert!(fixture.keep(keeper).await.is_nothing(), "{keeper}");
    }

    // The bot first gets the waiting agent. A slot is started for the next bot.
    let starts = fixture.fake.starts().len();
    let waited = fixture.core.reserved(10).await;
    let waits = slots.iter().find(|slot| !slot.stopped).unwrap();
    assert_eq!(fixture.bot(waited).await.slot.as_ref(), Some(&waits.name));
    assert_eq!(fixture.fake.starts().len(), starts);
    let started = fixture.core.reserved(11).await;
    fixture.runs(started).await;
    assert_eq!(fixture.fake.starts().len(), starts + 1);
    let slot = fixture.slot_of(started).await.unwrap();
    assert!(!slot.stopped && slot.name != waits.name);
}

/// A hot pool of two slots that run this bot.
fn hot(bot: &str) -> String {
    process_pool("meet", "standby = \"running\"\nmin_idle = 2\nmax_slots = 4", bot)
}

#[tokio::test]
async fn a_new_command_reaches_idle_hot_slots_and_the_doctor_counts_those_that_run_the_old_one() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start_configured(&database, &hot("read old")).await;
    let idle = async |server: &Process| {
        found("two are idle", async || {
            let slots = server.admin().get("/admin/slots?status=idle").await["slots"].as_array().unwrap().clone();
            (slots.len() >= 2).then_some(slots)
        })
        .await
    };
    idle(&server).await;
    assert!(doctor(&database).await.contains("all 2 run the current image and command"));
    server.kill().await;
    let server = Process::start_configured(&database, &hot("read new")).await;
    let said = found("all run the new one", async || {
        let said = doctor(&database).await;
        said.contains(" run the current image and command").then_some(said)
    })
    .await;
    assert!(!said.contains("older image"), "{said}");
    idle(&server).await;
    let running = database.running();
    assert!(running.iter().any(|process| process.command.contains("read new")), "{running:?}");
    assert!(!running.iter().any(|process| process.command.contains("read old")), "{running:?}");
}

async fn doctor(database: &Database) -> String {
    let mut command = Process::command();
    command.args(["doctor", "--database", &database.url]).current_dir(database.folder.path());
    String::from_utf8(command.output().await.unwrap().stdout).unwrap()
}
