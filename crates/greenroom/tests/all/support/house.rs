//! The parts behind the API, on a database of their own, with a clock that the test sets.

use std::time::Duration;

use domain::{BotId, Deadlines, Status};
use greenroom::admission::users::NewUser;
use greenroom::admission::{Admission, Wish};
use greenroom::clock::Clock;
use greenroom::keepers::sweeper::Sweeper;
use greenroom::lifecycle::callbacks::Voice;
use greenroom::lifecycle::tokens::Tokens;
use greenroom::lifecycle::{Lifecycle, LifecycleError};
use greenroom::random::Random;
use greenroom::store::Store;
use jiff::Timestamp;

use super::{Backend, Database, meet_link};

/// The defaults, with a sweeper that the test runs when it likes.
fn deadlines() -> Deadlines {
    Deadlines { sweeper_interval: Duration::from_secs(10_000_000), ..Deadlines::default() }
}

/// A house whose clock the test sets.
#[derive(Debug)]
pub struct House {
    pub store: Store,
    pub clock: Clock,
    admission: Admission,
    pub lifecycle: Lifecycle,
    sweeper: tokio::sync::Mutex<Sweeper>,
    key: greenroom::admission::keys::ApiKey,
    pub user: domain::UserId,
    _database: Database,
}

impl House {
    pub async fn new(backend: Backend) -> Self {
        let database = Database::new(backend).await;
        let store = database.open().await;
        let (clock, random) = (Clock::manual(Timestamp::now()), Random::System);
        let admission = Admission::new(store.clone(), clock.clone(), random.clone());
        let lifecycle = Lifecycle::new(store.clone(), clock.clone(), random, Tokens::new("secret"));
        let sweeper = Sweeper::new(lifecycle.clone(), deadlines()).into();
        let new = NewUser {
            email: "ada@example.com".to_owned(),
            name: "Ada".to_owned(),
            image_url: None,
            max_concurrent_bots: 99,
            data: serde_json::Map::new(),
        };
        let (user, key) = admission.create_user(new).await.unwrap();
        Self { store, clock, admission, lifecycle, sweeper, key, user: user.id, _database: database }
    }

    /// A bot that is reserved.
    pub async fn reserved(&self, number: usize) -> BotId {
        let wish = Wish {
            meeting: domain::Meeting::from_link(&meet_link(number)).unwrap(),
            bot_display_name: None,
            priority: 100,
            queue_timeout_ms: 1,
            config: serde_json::Map::new(),
            metadata: serde_json::Map::new(),
            idempotency: None,
        };
        self.admission.reserve(&self.key, wish).await.unwrap().bot.id
    }

    /// A new connection of a bot.
    pub async fn assigned(&self, bot: BotId) -> Result<Voice, LifecycleError> {
        let assignment = self.lifecycle.assign(bot).await?;
        let claim = self.lifecycle.claim(&assignment.token)?;
        Ok(Voice { claim, connection_id: assignment.connection_id })
    }

    /// A bot that has started.
    pub async fn started(&self, number: usize) -> (BotId, Voice) {
        let bot = self.reserved(number).await;
        let voice = self.assigned(bot).await.unwrap();
        self.lifecycle.started(voice, None).await.unwrap();
        (bot, voice)
    }

    /// Ends a bot if it is not at an end, to make room for the next.
    pub async fn ended(&self, bot: BotId) {
        if self.lifecycle.stop(self.user, bot).await.unwrap().bot.status == Status::Stopping {
            self.after(100_000).await;
        }
        assert!(self.stands(bot).await.0.is_ended());
    }

    /// Sweeps after so many seconds more, and says how many bots it ended.
    pub async fn after(&self, seconds: u64) -> u64 {
        self.clock.advance(Duration::from_secs(seconds));
        self.sweeper.lock().await.sweep().await.unwrap()
    }

    pub async fn stands(&self, bot: BotId) -> (Status, Option<String>) {
        let bot = self.store.bot(bot).await.unwrap().unwrap();
        (bot.status, bot.reason)
    }
}
