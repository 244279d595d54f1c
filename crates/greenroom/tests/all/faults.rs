//! A provider that fails on purpose: each of its calls, in each of the ways in which calls fail. After the keepers have
//! run, store and provider agree both ways, everyone who asked has an end, and a bot that lives was not hurt.

use std::sync::Arc;
use std::time::Duration;

use domain::{BotId, Status};
use greenroom::deployment::Patience;
use greenroom::lifecycle::callbacks::Voice;
use greenroom::placement::SlotEvent;
use greenroom::store::PoolRow;
use rstest::rstest;

use crate::support::{Backend, Database, Fake, Fault, House, Kind, Plan, Stage, pool, until};

/// Time passes: a minute for everyone, in which the keepers run and whatever runs does what it does next.
async fn pass_a_minute(stage: &Stage, live: (BotId, Voice)) {
    stage.house.clock.advance(Duration::from_secs(61));
    stage.house.lifecycle.heartbeat(live.1, &[]).await.unwrap();
    for keeper in ["queue_expiry", "deployment", "warm_buffer", "sweeper", "recovery", "sync", "invariants"] {
        stage.keep(keeper).await;
        stage.stir(&[live.0]).await;
    }
}

async fn opened(backend: Backend, hot: bool) -> Stage {
    let meet = PoolRow { hot, max_slots: 12, min_idle: if hot { 2 } else { 0 }, ..pool("meet") };
    let house = House::planned(Database::new(backend).await.into(), &Plan::of([meet])).await;
    let moment = Duration::from_millis(150);
    let patience = Patience { start: moment, stop: moment, look: moment, pull_stall: moment };
    let stage = Stage::patient(house, 4, Arc::new(Fake::default()), patience).await;
    if hot {
        while stage.house.store.slots(None, None).await.unwrap().iter().all(|slot| slot.bot_id.is_some()) {
            stage.keep("warm_buffer").await;
        }
        until("an agent waits", async || {
            stage.stir(&[]).await;
            stage.slots().await.iter().any(|(_, status)| *status == domain::SlotStatus::Idle)
        })
        .await;
    }
    stage
}

async fn weather(backend: Backend, hot: bool, kind: Kind, fault: Fault) {
    let stage = opened(backend, hot).await;
    let live = stage.stays(0).await;
    let before = stage.bot(live.0).await;
    // Some slots to work on, one of which is to go.
    let mut asked = vec![stage.house.reserved(1).await, stage.house.reserved(2).await];
    for bot in &asked {
        stage.runs(*bot).await;
    }
    stage.fake.break_next(kind, fault);
    stage.fake.break_next(kind, fault);
    stage.stir(&[live.0]).await;
    for number in 3..6 {
        asked.push(stage.house.reserved(number).await);
    }
    let going = stage
        .slots()
        .await
        .into_iter()
        .map(|(name, _)| name)
        .find(|name| before.slot.as_ref().is_none_or(|slot| slot.as_str() != name));
    let going = domain::SlotName::stored(going.unwrap());
    stage.house.placement.report(going, SlotEvent::Drain).await.unwrap();

    let mut last = None;
    until("store and provider agree, and everyone has an end", async || {
        pass_a_minute(&stage, live).await;
        let mut open = 0;
        for bot in &asked {
            open += usize::from(!stage.house.stands(*bot).await.0.is_ended());
        }
        let wrong = stage.disagreement().await.or_else(|| (open > 0).then(|| format!("{open} bots are open")));
        if wrong != last {
            eprintln!("{wrong:?}");
            last = wrong;
        }
        last.is_none() && stage.fake.faults_left() == 0 && stage.fake.is_settled()
    })
    .await;
    let after = stage.bot(live.0).await;
    assert_eq!(after.status, Status::Active, "{:?}", after.reason);
    assert_eq!((&after.slot, after.connection_id), (&before.slot, before.connection_id));
    // It can still be ended, and then nothing of it is left.
    stage.house.exited(live.1, 0).await.unwrap();
    until("nothing of it is left", async || {
        stage.house.clock.advance(Duration::from_secs(61));
        for keeper in ["deployment", "recovery", "sync"] {
            stage.keep(keeper).await;
            stage.stir(&[]).await;
        }
        stage.disagreement().await.is_none() && stage.slot_of(live.0).await.is_none()
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn store_and_provider_agree_again_whatever_call_fails_in_whatever_way(
    #[values(Kind::Start, Kind::Stop, Kind::Delete, Kind::List, Kind::Inspect)] kind: Kind,
    #[values(Fault::Error, Fault::Hang, Fault::NoEffect, Fault::NoAnswer, Fault::Late)] fault: Fault,
    #[values(false, true)] hot: bool,
) {
    weather(Backend::Sqlite, hot, kind, fault).await;
}

#[rstest]
#[tokio::test]
async fn store_and_provider_agree_again_on_postgres(
    #[values(Kind::Start, Kind::Stop, Kind::Delete, Kind::List, Kind::Inspect)] kind: Kind,
    #[values(Fault::NoEffect, Fault::Late)] fault: Fault,
) {
    weather(Backend::Postgres, false, kind, fault).await;
}
