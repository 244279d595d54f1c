//! A provider that fails on purpose: each of its calls, in each possible way. After the keepers have run, store and
//! provider agree, every request has a result, and a living bot was not hurt.

use std::sync::Arc;
use std::time::Duration;

use domain::{BotId, Status};
use greenroom::deployment::ProviderTimeouts;
use greenroom::lifecycle::callbacks::Caller;
use greenroom::placement::SlotEvent;
use greenroom::store::PoolRow;
use rstest::rstest;

use crate::support::{Backend, CoreFixture, Database, DeploymentFixture, Fake, Fault, Kind, Plan, pool, until};

/// Advances the clock by a minute, runs the keepers, and performs the next step of agents and bots.
async fn pass_a_minute(fixture: &DeploymentFixture, live: (BotId, Caller)) {
    fixture.core.clock.advance(Duration::from_secs(61));
    fixture.core.lifecycle.heartbeat(live.1, &[]).await.unwrap();
    for keeper in ["queue_expiry", "deployment", "warm_buffer", "sweeper", "recovery", "sync", "invariants", "stats"] {
        fixture.keep(keeper).await;
        fixture.advance_bots(&[live.0]).await;
    }
}

async fn opened(backend: Backend, hot: bool) -> DeploymentFixture {
    let meet = PoolRow { hot, max_slots: 12, min_idle: if hot { 2 } else { 0 }, ..pool("meet") };
    let core = CoreFixture::planned(Database::new(backend).await.into(), &Plan::of([meet])).await;
    let moment = Duration::from_millis(150);
    let timeouts = ProviderTimeouts { start: moment, stop: moment, inspect: moment, pull_stall: moment };
    let fixture = DeploymentFixture::patient(core, 4, Arc::new(Fake::default()), timeouts).await;
    if hot {
        while fixture.core.store.slots(None, None).await.unwrap().iter().all(|slot| slot.bot_id.is_some()) {
            fixture.keep("warm_buffer").await;
        }
        until("an agent waits", async || {
            fixture.advance_bots(&[]).await;
            fixture.slots().await.iter().any(|(_, status)| *status == domain::SlotStatus::Idle)
        })
        .await;
    }
    fixture
}

async fn weather(backend: Backend, hot: bool, kind: Kind, fault: Fault) {
    let fixture = opened(backend, hot).await;
    let live = fixture.stays(0).await;
    let before = fixture.bot(live.0).await;
    // A few slots, one of which is to be deleted.
    let mut asked = vec![fixture.core.reserved(1).await, fixture.core.reserved(2).await];
    for bot in &asked {
        fixture.runs(*bot).await;
    }
    fixture.fake.break_next(kind, fault);
    fixture.fake.break_next(kind, fault);
    fixture.advance_bots(&[live.0]).await;
    for number in 3..6 {
        asked.push(fixture.core.reserved(number).await);
    }
    let going = fixture
        .slots()
        .await
        .into_iter()
        .map(|(name, _)| name)
        .find(|name| before.slot.as_ref().is_none_or(|slot| slot.as_str() != name));
    let going = domain::SlotName::stored(going.unwrap());
    fixture.core.placement.report(going, SlotEvent::Drain).await.unwrap();

    let mut last = None;
    until("store and provider agree, and every bot has ended", async || {
        pass_a_minute(&fixture, live).await;
        let mut open = 0;
        for bot in &asked {
            open += usize::from(!fixture.core.stands(*bot).await.0.is_ended());
        }
        let wrong = fixture.disagreement().await.or_else(|| (open > 0).then(|| format!("{open} bots are open")));
        if wrong != last {
            eprintln!("{wrong:?}");
            last = wrong;
        }
        last.is_none() && fixture.fake.faults_left() == 0 && fixture.fake.is_settled()
    })
    .await;
    let after = fixture.bot(live.0).await;
    assert_eq!(after.status, Status::Active, "{:?}", after.reason);
    assert_eq!((&after.slot, after.connection_id), (&before.slot, before.connection_id));
    // The living bot can still be ended, and then nothing of it is left.
    fixture.core.exited(live.1, 0).await.unwrap();
    until("nothing of the bot is left", async || {
        fixture.core.clock.advance(Duration::from_secs(61));
        for keeper in ["deployment", "recovery", "sync"] {
            fixture.keep(keeper).await;
            fixture.advance_bots(&[]).await;
        }
        fixture.disagreement().await.is_none() && fixture.slot_of(live.0).await.is_none()
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn store_and_provider_agree_again_after_any_failure_of_any_call(
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
