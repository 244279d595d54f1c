//! Random lives of bots in the real store: callbacks under new and old connections, repeated and late ones, stops, new
//! assignments and deadlines, in any order. The rules hold in each case.

use domain::lifecycle::{TABLE, Trigger};
use domain::{BotId, Reason};
use greenroom::lifecycle::LifecycleError;
use greenroom::lifecycle::callbacks::{Caller, Segment};
use greenroom::store::{BotRow, EventRow, SegmentPosition};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::support::{Backend, CoreFixture};

/// An event of a bot. The number selects one of its connections: 0 is the newest.
#[derive(Clone, Debug)]
enum Happening {
    Assigned,
    Started(usize),
    Awaits(usize),
    NeedsHelp(usize),
    Joined(usize),
    Stops(usize),
    Speaks(usize, u8),
    Beats(usize),
    Exited(usize, i64),
    StopAsked,
    Configured,
    TimePasses(u64),
}

fn happening() -> impl Strategy<Value = Happening> {
    // Mostly the newest connection, so that bots make progress.
    let connection = prop_oneof![6 => Just(0_usize), 1 => 1_usize..4];
    prop_oneof![
        2 => Just(Happening::Assigned),
        4 => connection.clone().prop_map(Happening::Started),
        2 => connection.clone().prop_map(Happening::Awaits),
        1 => connection.clone().prop_map(Happening::NeedsHelp),
        4 => connection.clone().prop_map(Happening::Joined),
        1 => connection.clone().prop_map(Happening::Stops),
        2 => (connection.clone(), 0_u8..3).prop_map(|(connection, text)| Happening::Speaks(connection, text)),
        3 => connection.clone().prop_map(Happening::Beats),
        1 => (connection, prop_oneof![Just(0_i64), Just(1)]).prop_map(|(c, code)| Happening::Exited(c, code)),
        1 => Just(Happening::StopAsked),
        1 => Just(Happening::Configured),
        1 => (1_u64..400).prop_map(Happening::TimePasses),
    ]
}

struct Life {
    core: CoreFixture,
    bot: BotId,
    /// The newest first.
    callers: Vec<Caller>,
}

impl Life {
    async fn known(&self) -> (BotRow, Vec<EventRow>, usize) {
        let bot = self.core.store.bot(self.bot).await.unwrap().unwrap();
        let events = self.core.store.events_of_bot(self.bot).await.unwrap();
        let said = self.core.store.transcript(self.bot, SegmentPosition::FIRST, i64::MAX).await.unwrap();
        (bot, events, said.len())
    }

    /// The connection of a callback, and whether it is an old one. `None` if the event is no callback.
    fn caller(&self, happening: &Happening) -> Option<(Caller, bool)> {
        let number = match happening {
            Happening::Started(n)
            | Happening::Awaits(n)
            | Happening::NeedsHelp(n)
            | Happening::Joined(n)
            | Happening::Stops(n)
            | Happening::Speaks(n, _)
            | Happening::Beats(n)
            | Happening::Exited(n, _) => *n,
            Happening::Assigned | Happening::StopAsked | Happening::Configured | Happening::TimePasses(_) => {
                return None;
            }
        };
        let caller = self.callers.get(number.min(self.callers.len().checked_sub(1)?))?;
        Some((*caller, caller.connection_id != self.callers[0].connection_id))
    }

    async fn happens(&mut self, happening: &Happening) -> Result<(), LifecycleError> {
        let lifecycle = &self.core.lifecycle;
        let caller = self.caller(happening).map(|(caller, _)| caller);
        match (happening, caller) {
            (Happening::Assigned, _) => {
                let caller = self.core.assigned(self.bot).await?;
                self.callers.insert(0, caller);
            }
            (Happening::StopAsked, _) => lifecycle.stop(self.core.user, self.bot).await.map(drop)?,
            (Happening::Configured, _) => {
                lifecycle.configure(self.core.user, self.bot, serde_json::Map::new()).await.map(drop)?;
            }
            (Happening::TimePasses(seconds), _) => drop(self.core.after(*seconds).await),
            (Happening::Started(_), Some(caller)) => lifecycle.started(caller, Some("c")).await.map(drop)?,
            (Happening::Awaits(_), Some(caller)) => {
                lifecycle.status(caller, Trigger::AwaitingAdmission { reason: None }).await.map(drop)?;
            }
            (Happening::NeedsHelp(_), Some(caller)) => {
                lifecycle.status(caller, Trigger::NeedsHelp { reason: None }).await.map(drop)?;
            }
            (Happening::Stops(_), Some(caller)) => {
                let reason = Some(Reason::Own("alone".to_owned()));
                lifecycle.status(caller, Trigger::Stopping { reason }).await.map(drop)?;
            }
            (Happening::Joined(_), Some(caller)) => lifecycle.joined(caller).await.map(drop)?,
            (Happening::Beats(_), Some(caller)) => lifecycle.heartbeat(caller, &[]).await.map(drop)?,
            (Happening::Speaks(_, text), Some(caller)) => {
                let said =
                    Segment { start_time: 0.0, end_time: 1.0, text: text.to_string(), speaker: None, language: None };
                lifecycle.transcript(caller, vec![said]).await.map(drop)?;
            }
            (Happening::Exited(_, code), Some(caller)) => self.core.exited(caller, *code).await.map(drop)?,
            // The bot has no connection for a callback yet.
            (_, None) => {}
        }
        Ok(())
    }

    async fn live(&mut self, happenings: &[Happening]) {
        let mut before = self.known().await;
        for happening in happenings {
            let spoken = self.caller(happening);
            let done = self.happens(happening).await;
            let after = self.known().await;
            let (was, is) = (before.0.status, after.0.status);
            if was.is_ended() {
                assert_eq!(
                    (&before.0, &before.1, before.2),
                    (&after.0, &after.1, after.2),
                    "{happening:?} after the end"
                );
            }
            if let Some((_, true)) = spoken {
                assert!(matches!(done, Err(LifecycleError::StaleConnection)), "{happening:?}: {done:?}");
                assert_eq!(before, after, "{happening:?} under an old connection");
            }
            if done.is_err() {
                assert_eq!(before, after, "{happening:?} was refused");
            }
            if was != is {
                let allowed = TABLE.iter().any(|rule| rule.from.contains(&was) && rule.to == is);
                assert!(allowed, "{happening:?} moved it from {was} to {is}");
            }
            if done.is_ok() && spoken.is_some() {
                self.happens(happening).await.unwrap_or_else(|error| panic!("{happening:?} again: {error}"));
                assert_eq!(after, self.known().await, "{happening:?} again");
            }
            before = after;
        }
        self.expect_a_true_trail(&before);
    }

    /// Asserts that the events have each change once, and lead from the reservation to the bot's current status.
    fn expect_a_true_trail(&self, (bot, events, _): &(BotRow, Vec<EventRow>, usize)) {
        let mut shown = None;
        for event in events.iter().filter(|event| event.to.is_some()) {
            assert_eq!(event.from, shown, "{events:#?}");
            shown = event.to;
        }
        assert_eq!(shown, Some(bot.shown()));
        assert_eq!(bot.end_time.is_some(), bot.status.is_ended());
        assert_eq!(bot.status.is_ended(), bot.status.is_ended() && bot.reason.is_some(), "an end has a reason");
    }
}

fn random_lives(backend: Backend, lives: u32) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let core = std::sync::Arc::new(tokio::sync::Mutex::new(None));
    let number = std::sync::atomic::AtomicUsize::new(0);
    let config = proptest::test_runner::Config { cases: lives, failure_persistence: None, ..Default::default() };
    let strategy = prop::collection::vec(happening(), 1..40);
    let lived = TestRunner::new(config).run(&strategy, |happenings| {
        runtime.block_on(async {
            // One database for all cases, and a separate meeting for each.
            let mut core = core.lock().await;
            let kept = match core.take() {
                Some(kept) => kept,
                None => CoreFixture::new(backend).await,
            };
            let bot = kept.reserved(number.fetch_add(1, std::sync::atomic::Ordering::SeqCst)).await;
            let mut life = Life { core: kept, bot, callers: Vec::new() };
            life.live(&happenings).await;
            life.core.ended(bot).await;
            *core = Some(life.core);
        });
        Ok(())
    });
    lived.unwrap();
}

#[test]
fn in_random_lives_the_rules_hold_on_sqlite() {
    random_lives(Backend::Sqlite, 120);
}

#[test]
fn in_random_lives_the_rules_hold_on_postgres() {
    random_lives(Backend::Postgres, 40);
}
