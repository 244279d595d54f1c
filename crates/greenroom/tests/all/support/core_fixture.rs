//! The parts behind the API, with their own database and a clock that the test sets.

use std::sync::Arc;
use std::time::Duration;

use domain::planner::QueueOrder;
use domain::{BotId, Deadlines, Platform, SlotStatus, Status};
use greenroom::admission::users::NewUser;
use greenroom::admission::{Admission, BotRequest};
use greenroom::clock::Clock;
use greenroom::context::Context;
use greenroom::keepers::Keeper;
use greenroom::keepers::listening::ListeningWindow;
use greenroom::keepers::sweeper::Sweeper;
use greenroom::lifecycle::callbacks::Caller;
use greenroom::lifecycle::ends::Ending;
use greenroom::lifecycle::tokens::Tokens;
use greenroom::lifecycle::{Lifecycle, LifecycleError};
use greenroom::placement::{Placement, Reserved};
use greenroom::random::Random;
use greenroom::signals::Signals;
use greenroom::store::{Changed, PoolRow, Store};
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::placement_writes::write_slots;
use super::{Backend, Database, meet_link};

/// The defaults, but the test runs the sweeper itself, and nothing polls. Actions that must happen at once cannot
/// depend on polls then.
fn deadlines() -> Deadlines {
    let far_off = Duration::from_secs(10_000_000);
    Deadlines { sweeper_interval: far_off, queue_poll: far_off, ..Deadlines::default() }
}

/// A pool of the provider `process`, with stopped slots.
pub fn pool(name: &str) -> PoolRow {
    PoolRow {
        name: name.to_owned(),
        platform: Platform::GoogleMeet,
        provider: "process".to_owned(),
        host: "process here".to_owned(),
        hot: false,
        recycle_after: 1,
        max_slots: 1,
        min_idle: 0,
        fill_order: Some(0),
        slots: 0,
        mean_hold_ms: None,
        attribute_sets: vec![Default::default()],
        expire_after_ms: None,
        idle_timeout_ms: None,
        ready_timeout_ms: None,
        max_warm_age_ms: None,
        recipe: None,
    }
}

/// Stores a pool, as a configuration would.
pub async fn configure(store: &Store, pool: &PoolRow) {
    let mut tx = store.begin_changing(&Changed::everything(), Timestamp::now()).await.unwrap();
    tx.configure_pool(pool).await.unwrap();
    tx.commit().await.unwrap();
}

/// A request for a separate meeting, with defaults for everything else.
pub fn bot_request(number: usize) -> BotRequest {
    BotRequest {
        meeting: domain::Meeting::from_link(&meet_link(number)).unwrap(),
        bot_display_name: None,
        priority: 100,
        queue_timeout_ms: 300_000,
        given_requirements: None,
        requirements: None,
        config: serde_json::Map::new(),
        metadata: serde_json::Map::new(),
        idempotency: None,
    }
}

/// The settings of a `CoreFixture`.
#[derive(Clone, Debug)]
pub struct Plan {
    pub clock: Clock,
    pub deadlines: Deadlines,
    pub pools: Vec<PoolRow>,
    pub queue_order: QueueOrder,
}

impl Plan {
    /// A clock that the test sets, and these pools in this order.
    pub fn of(pools: impl IntoIterator<Item = PoolRow>) -> Self {
        let placed = pools.into_iter().zip(0..).map(|(pool, position)| PoolRow { fill_order: Some(position), ..pool });
        Self {
            clock: Clock::manual(Timestamp::now()),
            deadlines: deadlines(),
            pools: placed.collect(),
            queue_order: QueueOrder::Arrival,
        }
    }
}

/// The parts behind the API, with a clock that the test sets.
#[derive(Debug)]
pub struct CoreFixture {
    pub context: Context,
    pub signals: Signals,
    pub store: Store,
    pub clock: Clock,
    pub placement: Placement,
    pub lifecycle: Lifecycle,
    pub deadlines: Deadlines,
    pub sweeper: Sweeper,
    admission: Admission,
    key: greenroom::admission::api_keys::ApiKey,
    pub user: domain::UserId,
    pub database: Arc<Database>,
}

impl CoreFixture {
    pub async fn new(backend: Backend) -> Self {
        let database = Database::new(backend).await;
        Self::planned(database.into(), &Plan::of([PoolRow { max_slots: 2_000, ..pool("meet") }])).await
    }

    /// A fixture on a database that others may use as well.
    pub async fn planned(database: Arc<Database>, plan: &Plan) -> Self {
        let store = database.open().await;
        Self::on(store, database, plan).await
    }

    /// Like `planned`, but with a store that the caller has opened.
    pub async fn on(store: Store, database: Arc<Database>, plan: &Plan) -> Self {
        let clock = plan.clock.clone();
        let context = Context::new(store.clone(), clock.clone(), Random::System);
        let signals = Signals::default();
        let admission = Admission::new(context.clone());
        let lifecycle = Lifecycle::new(context.clone(), signals.clone(), Tokens::new("secret"));
        let sweeper =
            Sweeper::new(&context, lifecycle.clone(), plan.deadlines.clone(), ListeningWindow::new(clock.clone()));
        let new = NewUser {
            email: "ada@example.com".to_owned(),
            name: "Ada".to_owned(),
            image_url: None,
            max_concurrent_bots: 1_000,
            min_priority: i64::MIN,
            data: serde_json::Map::new(),
        };
        let (user, key) = admission.create_user(new, None).await.unwrap();
        for pool in &plan.pools {
            configure(&store, pool).await;
        }
        let (placement, placing) = Placement::begin(
            context.clone(),
            signals.clone(),
            admission.clone(),
            lifecycle.clone(),
            plan.deadlines.clone(),
            plan.queue_order,
            CancellationToken::new(),
        );
        tokio::spawn(placing);
        let deadlines = plan.deadlines.clone();
        Self {
            context,
            signals,
            store,
            clock,
            placement,
            lifecycle,
            deadlines,
            sweeper,
            admission,
            key,
            user: user.id,
            database,
        }
    }

    /// Gives a status to all slots of a pool that have no bot.
    pub async fn occupy(&self, pool: &str, status: SlotStatus) {
        let mut slots = self.store.slots_of_pool(pool).await.unwrap();
        slots.iter_mut().for_each(|slot| slot.status = status);
        write_slots(&self.store, slots, false, self.clock.now()).await;
    }

    /// The key of another user, with this limit.
    pub async fn another_user(&self, max_concurrent_bots: i64) -> greenroom::admission::api_keys::ApiKey {
        let new = NewUser {
            email: "eve@example.com".to_owned(),
            name: "Eve".to_owned(),
            image_url: None,
            max_concurrent_bots,
            min_priority: 0,
            data: serde_json::Map::new(),
        };
        self.admission.create_user(new, None).await.unwrap().1
    }

    /// The key of the fixture's user.
    pub fn key(&self) -> greenroom::admission::api_keys::ApiKey {
        self.key.clone()
    }

    /// Requests a bot that must be admitted.
    pub async fn ask(&self, bot_request: BotRequest) -> Reserved {
        self.placement.reserve(self.key.clone(), bot_request).await.unwrap()
    }

    /// Requests many bots at once. The answers are in no particular order.
    pub async fn ask_at_once(&self, bot_requests: impl IntoIterator<Item = BotRequest>) -> Vec<Reserved> {
        let mut requests = tokio::task::JoinSet::new();
        for bot_request in bot_requests {
            let (placement, key) = (self.placement.clone(), self.key.clone());
            requests.spawn(async move { placement.reserve(key, bot_request).await.unwrap() });
        }
        requests.join_all().await
    }

    /// A bot that is reserved.
    pub async fn reserved(&self, number: usize) -> BotId {
        self.ask(bot_request(number)).await.bot.id
    }

    /// A new connection of a bot.
    pub async fn assigned(&self, bot: BotId) -> Result<Caller, LifecycleError> {
        let assignment = self.lifecycle.assign(bot, None).await?;
        let claim = self.lifecycle.claim(&assignment.token)?;
        Ok(Caller { claim, connection_id: assignment.connection_id })
    }

    /// A bot that has started.
    pub async fn started(&self, number: usize) -> (BotId, Caller) {
        let bot = self.reserved(number).await;
        let caller = self.assigned(bot).await.unwrap();
        self.lifecycle.started(caller, None).await.unwrap();
        (bot, caller)
    }

    /// Sends the `exited` callback of a bot.
    pub async fn exited(&self, caller: Caller, exit_code: i64) -> Result<Status, LifecycleError> {
        self.placement.end(Ending::Exited { caller, exit_code, reason: None, error: None }).await
    }

    /// Ends a bot if it has not ended, so that the user may have another one.
    pub async fn ended(&self, bot: BotId) {
        if self.lifecycle.stop(self.user, bot).await.unwrap().bot.status == Status::Stopping {
            self.after(100_000).await;
        }
        assert!(self.stands(bot).await.0.is_ended());
    }

    /// Advances the clock by this many seconds, sweeps, and returns how many bots the sweeper ended.
    pub async fn after(&self, seconds: u64) -> u64 {
        self.clock.advance(Duration::from_secs(seconds));
        self.sweeper.run().await.unwrap().counts.values().sum()
    }

    pub async fn stands(&self, bot: BotId) -> (Status, Option<String>) {
        let bot = self.store.bot(bot).await.unwrap().unwrap();
        (bot.status, bot.reason)
    }
}
