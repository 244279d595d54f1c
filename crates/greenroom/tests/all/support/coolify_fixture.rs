//! The fake Coolify, and Greenroom's provider for it, as several processes would use it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use domain::SlotName;
use greenroom::config::provider::CoolifyConfig;
use greenroom::providers::budget::Budget;
use greenroom::providers::coolify::{Coolify, CoolifyProvider, Pace};
use greenroom::providers::{Found, Provider, Spec};
use greenroom::store::Store;

use super::{
    Backend, COOLIFY_TOKEN, CoolifyApplication, CoolifyFake, CoolifyFault, CoolifyOperation, CoolifySettings, Database,
    until,
};

/// The length of the "minute" for which the request limit holds.
const MINUTE: Duration = Duration::from_millis(1_200);
const SHORTEST_LISTING: Duration = Duration::from_secs(3);
/// More requests than a test sends.
const MOST: u32 = 100_000;

#[derive(Debug)]
pub struct CoolifyFixture {
    pub fake: CoolifyFake,
    pub store: Store,
    pub installation: String,
    pub pace: Pace,
    pub most: u32,
    pub minute: Duration,
    pub database: Arc<Database>,
}

impl CoolifyFixture {
    pub async fn new(change: impl FnOnce(&mut CoolifySettings)) -> Self {
        Self::on(Database::new(Backend::Sqlite).await.into(), MOST, MINUTE, change).await
    }

    pub async fn plain() -> Self {
        Self::new(|_| {}).await
    }

    /// A fixture that accepts this many requests in a "minute" of this length.
    pub async fn on(
        database: Arc<Database>,
        most: u32,
        minute: Duration,
        change: impl FnOnce(&mut CoolifySettings),
    ) -> Self {
        let mut settings = CoolifySettings { limit: most, window: minute, ..CoolifySettings::default() };
        change(&mut settings);
        let (fake, store) = (CoolifyFake::start(settings).await, database.open().await);
        let installation = uuid::Uuid::new_v4().to_string();
        let pace = Pace::of(most, minute);
        // With such a short "minute", a busy machine has no time to list.
        let pace = Pace { listed_within: pace.listed_within.max(SHORTEST_LISTING), ..pace };
        Self { fake, store, installation, pace, most, minute, database }
    }

    pub fn config(&self) -> CoolifyConfig {
        CoolifyConfig {
            api_url: self.fake.url.clone(),
            api_token: COOLIFY_TOKEN.into(),
            project_uuid: CoolifyFake::PROJECT.to_owned(),
            server_uuid: CoolifyFake::SERVER.to_owned(),
            environment_name: "production".to_owned(),
            destination_uuid: None,
            image: "images.example/team/bot".to_owned(),
            tag: "1.4".to_owned(),
            cpus: Some(1.5),
            memory: Some(512 * 1024 * 1024),
            env: BTreeMap::from([("LANG".to_owned(), "C.UTF-8".to_owned())]),
            requests_per_minute: self.most,
        }
    }

    /// The provider as a newly started process has it.
    pub fn process(&self) -> CoolifyProvider {
        self.process_with(self.config())
    }

    pub fn process_with(&self, config: CoolifyConfig) -> CoolifyProvider {
        self.process_of(&self.installation, config)
    }

    pub fn process_of(&self, installation: &str, config: CoolifyConfig) -> CoolifyProvider {
        let budget = Budget::new(self.store.clone(), self.fake.url.clone(), self.most, self.minute);
        CoolifyProvider::on(Coolify::new(&config, installation.to_owned(), budget, self.pace.clone()), config)
    }

    pub fn slot(number: i64) -> SlotName {
        SlotName::new("meet", number)
    }

    /// A spec for a bot with this connection.
    pub fn spec(number: i64, connection: &str) -> Spec {
        let slot = Self::slot(number);
        let environment = BTreeMap::from([
            ("GREENROOM_URL".to_owned(), "http://greenroom.test".to_owned()),
            ("GREENROOM_SLOT".to_owned(), slot.to_string()),
            ("GREENROOM_SLOT_TOKEN".to_owned(), "grs_$secret".to_owned()),
        ]);
        Spec {
            slot,
            generation: 1,
            connection: Some(connection.to_owned()),
            environment,
            fresh: true,
            requirements: None,
        }
    }

    /// A spec for any bot, in this generation.
    pub fn hot(number: i64, generation: i64) -> Spec {
        Spec { generation, connection: None, ..Self::spec(number, "") }
    }

    /// The only application.
    pub fn only(&self) -> CoolifyApplication {
        let mut all = self.fake.applications();
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    pub fn count(&self, operation: CoolifyOperation) -> usize {
        self.fake.count(operation)
    }

    pub async fn found(&self, number: i64) -> Option<Found> {
        self.process().inspect(&Self::slot(number)).await.unwrap()
    }

    pub async fn until_count(&self, operation: CoolifyOperation, count: usize) {
        until("it is requested", async || self.count(operation) >= count).await;
    }

    /// Makes the next `count` requests of each kind that changes something fail.
    pub fn break_changes(&self, fault: CoolifyFault, count: usize) {
        let changes = [
            CoolifyOperation::Create,
            CoolifyOperation::BulkEnvs,
            CoolifyOperation::Describe,
            CoolifyOperation::Start,
            CoolifyOperation::Stop,
            CoolifyOperation::Delete,
        ];
        for operation in changes {
            self.fake.break_next(operation, fault, count);
        }
    }

    pub fn no_violations(&self) {
        assert_eq!(self.fake.violations(), Vec::<String>::new());
        assert_eq!(self.fake.env_changes_after_deployment(), 0);
        assert_eq!(self.fake.prunes(), 0);
    }
}
