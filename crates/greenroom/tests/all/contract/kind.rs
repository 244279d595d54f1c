//! The providers under test, each with the server that it needs: the real one if possible. Some can disturb the
//! connection to it.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use domain::SlotName;
use greenroom::config::provider::DockerConfig;
use greenroom::providers::docker::DockerProvider;
use greenroom::providers::swarm::SwarmProvider;
use greenroom::providers::{Found, Provider, Spec};

use crate::support::{
    CoolifyFault, CoolifyFixture, Dialect, Engine, NomadFake, NomadFault, NomadOperation, Recipe, Relay, Swarm,
    process_provider, until,
};

/// A provider, and a function that opens another one for the same slots, as after a crash.
pub struct Kind {
    pub provider: Arc<dyn Provider>,
    pub reopen: Box<dyn Fn() -> Arc<dyn Provider>>,
    /// The same provider for another installation.
    pub stranger: Arc<dyn Provider>,
    /// A unique pool name, because other tests may use the same server.
    pool: String,
    pub trouble: Box<dyn Trouble>,
}

/// Faults between a provider and the server of its slots. It lives as long as the test.
pub trait Trouble {
    /// Delays the next answers to changes.
    fn delay(&self, _count: usize) {}

    /// Drops the next answers to changes. The changes are carried out.
    fn lose(&self, _count: usize) {}

    /// Asserts that the provider sent nothing that the real server would refuse.
    fn expect_no_fault(&self) {}
}

/// Nothing is between a provider of processes and the kernel.
impl Trouble for tempfile::TempDir {}

/// The provider reaches the engine through a relay. The engine's resources are removed with the test.
impl<B> Trouble for (Relay, B) {
    fn delay(&self, count: usize) {
        self.0.delay(count);
    }

    fn lose(&self, count: usize) {
        self.0.lose(count);
    }
}

pub type Made = Pin<Box<dyn Future<Output = Kind>>>;

fn new_installation() -> String {
    uuid::Uuid::new_v4().to_string()
}

impl Kind {
    /// `made` makes a provider for an installation.
    fn new(
        installation: String,
        made: impl Fn(String) -> Arc<dyn Provider> + 'static,
        trouble: impl Trouble + 'static,
    ) -> Self {
        let (provider, stranger) = (made(installation.clone()), made(new_installation()));
        let reopen = Box::new(move || made(installation.clone()));
        let pool = format!("c{}", &uuid::Uuid::new_v4().simple().to_string()[..12]);
        Self { provider, stranger, reopen, pool, trouble: Box::new(trouble) }
    }

    pub fn slot(&self, number: i64) -> SlotName {
        SlotName::new(&self.pool, number)
    }

    pub fn spec(&self, number: i64, connection: &str) -> Spec {
        let environment = BTreeMap::from([("GREENROOM_SLOT".to_owned(), self.slot(number).to_string())]);
        let connection = Some(connection.to_owned());
        Spec { slot: self.slot(number), generation: 1, connection, environment, fresh: true, requirements: None }
    }

    /// The spec of an agent that waits.
    pub fn waiting(&self, number: i64) -> Spec {
        Spec { connection: None, ..self.spec(number, "") }
    }

    /// Whether something runs in a slot, or `None` if the slot does not exist.
    pub async fn inspect(&self, number: i64) -> Option<bool> {
        self.provider.inspect(&self.slot(number)).await.unwrap().map(|found| found.running)
    }

    pub async fn runs(&self, number: i64) {
        until("it runs", async || self.inspect(number).await == Some(true)).await;
    }

    pub async fn list(&self) -> Vec<There> {
        list(&*self.provider).await
    }

    pub fn there(&self, number: i64, running: bool) -> There {
        (self.slot(number), running)
    }

    pub async fn end(self) {
        for found in self.provider.list().await.unwrap() {
            self.provider.delete(&found.slot).await.unwrap();
        }
        until("nothing is left", async || self.list().await.is_empty()).await;
        self.trouble.expect_no_fault();
    }
}

/// An existing slot, and whether something runs in it.
pub type There = (SlotName, bool);

pub async fn list(provider: &dyn Provider) -> Vec<There> {
    provider.list().await.unwrap().into_iter().map(|Found { slot, running, .. }| (slot, running)).collect()
}

/// Slots that are processes, each of which runs until it is ended.
pub fn process() -> Made {
    Box::pin(async {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_owned();
        let made = move |installation: String| -> Arc<dyn Provider> {
            Arc::new(process_provider(&path, &["sh", "-c", "sleep 1000 & wait"], &installation))
        };
        Kind::new(new_installation(), made, folder)
    })
}

/// Slots that are containers.
pub fn docker() -> Made {
    Box::pin(async {
        let engine = Engine::shared().await;
        let image = engine.image(&Recipe::script("trap 'exit 0' TERM; sleep 1000 & wait")).await;
        let relay = Relay::to(&engine.host).await;
        let host = Some(format!("tcp://{}", relay.address));
        let config = DockerConfig { host, image, ..DockerConfig::default() };
        let installation = new_installation();
        let labelled = engine.labelled(&format!("greenroom.installation={installation}"));
        let made =
            move |installation| -> Arc<dyn Provider> { Arc::new(DockerProvider::new(config.clone(), installation)) };
        Kind::new(installation, made, (relay, labelled))
    })
}

/// Slots that are services of a swarm that only this test uses.
pub fn swarm() -> Made {
    Box::pin(async {
        let swarm = Swarm::single().await;
        let image = swarm.image(&Recipe::script("trap 'exit 0' TERM; sleep 1000 & wait")).await;
        let relay = Relay::to(&swarm.manager().host).await;
        let host = Some(format!("tcp://{}", relay.address));
        let config = DockerConfig { host, image, ..DockerConfig::default() };
        let made =
            move |installation| -> Arc<dyn Provider> { Arc::new(SwarmProvider::new(config.clone(), installation)) };
        Kind::new(new_installation(), made, (relay, swarm))
    })
}

impl Trouble for Arc<CoolifyFixture> {
    fn delay(&self, count: usize) {
        self.break_changes(CoolifyFault::Slow(Duration::from_millis(300)), count);
    }

    fn lose(&self, count: usize) {
        self.break_changes(CoolifyFault::Lost, count);
    }

    fn expect_no_fault(&self) {
        self.no_violations();
    }
}

/// Slots that are applications of the fake Coolify.
pub fn coolify(dialect: Dialect) -> Made {
    Box::pin(async move {
        let fixture = Arc::new(CoolifyFixture::new(|settings| settings.dialect = dialect).await);
        let processes = fixture.clone();
        let made = move |installation: String| -> Arc<dyn Provider> {
            Arc::new(processes.process_of(&installation, processes.config()))
        };
        Kind::new(new_installation(), made, fixture)
    })
}

/// Slots that are jobs of the fake Nomad, which refuses every mistake.
pub fn nomad() -> Made {
    Box::pin(async {
        let fake = NomadFake::start().await;
        let config = crate::nomad::config(&fake);
        let made = move |installation: String| -> Arc<dyn Provider> {
            Arc::new(crate::nomad::with(config.clone(), &installation))
        };
        Kind::new(new_installation(), made, fake)
    })
}

impl Trouble for NomadFake {
    fn delay(&self, count: usize) {
        let late = NomadFault::Slow(Duration::from_millis(300));
        self.break_next(NomadOperation::Register, late, count);
    }

    fn lose(&self, count: usize) {
        for operation in [NomadOperation::Register, NomadOperation::Deregister] {
            self.break_next(operation, NomadFault::Lost, count);
        }
    }

    fn expect_no_fault(&self) {
        assert_eq!(self.violations(), Vec::<String>::new());
    }
}
