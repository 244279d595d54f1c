//! What every provider promises, whatever slots are made of there: each call can be made twice, what is gone is gone,
//! what it has is found again by a process that was not there when it was made, and an answer that is late or lost harms
//! nobody.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use domain::SlotName;
use greenroom::config::provider::DockerConfig;
use greenroom::providers::docker::DockerProvider;
use greenroom::providers::process::ProcessProvider;
use greenroom::providers::swarm::SwarmProvider;
use greenroom::providers::{Found, Provider, ProviderError, Spec};
use rstest::rstest;

use crate::support::{
    CoolifyFault, CoolifyScene, Dialect, Engine, NomadFake, NomadFault, NomadOperation, Recipe, Relay, Swarm, until,
};

/// A provider, and how to have another one for the same slots, as after a crash.
struct Kind {
    provider: Arc<dyn Provider>,
    again: Box<dyn Fn() -> Arc<dyn Provider>>,
    /// The same provider for another installation.
    stranger: Arc<dyn Provider>,
    /// Its slots have names of their own, because what runs them may be shared by many tests.
    pool: String,
    trouble: Box<dyn Trouble>,
}

/// What goes wrong between a provider and what runs its slots. It lives as long as the test.
trait Trouble {
    /// The next answers to changes come late.
    fn delay(&self, _count: usize) {}

    /// The next answers to changes are lost, although what was asked for is done.
    fn lose(&self, _count: usize) {}

    /// Expects that nothing was sent that the real thing would not take.
    fn expect_no_fault(&self) {}
}

/// There is nothing between a provider of processes and the kernel.
impl Trouble for tempfile::TempDir {}

/// An engine is reached through a relay; what is behind it goes with the test.
impl<B> Trouble for (Relay, B) {
    fn delay(&self, count: usize) {
        self.0.delay(count);
    }

    fn lose(&self, count: usize) {
        self.0.lose(count);
    }
}

type Made = Pin<Box<dyn Future<Output = Kind>>>;

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
        let again = Box::new(move || made(installation.clone()));
        let pool = format!("c{}", &uuid::Uuid::new_v4().simple().to_string()[..12]);
        Self { provider, stranger, again, pool, trouble: Box::new(trouble) }
    }

    fn slot(&self, number: i64) -> SlotName {
        SlotName::new(&self.pool, number)
    }

    fn spec(&self, number: i64, connection: &str) -> Spec {
        let environment = BTreeMap::from([("GREENROOM_SLOT".to_owned(), self.slot(number).to_string())]);
        let connection = Some(connection.to_owned());
        Spec { slot: self.slot(number), generation: 1, connection, environment, fresh: true }
    }

    /// For an agent that waits.
    fn waiting(&self, number: i64) -> Spec {
        Spec { connection: None, ..self.spec(number, "") }
    }

    /// What is there under a slot's name, and whether something runs in it.
    async fn look(&self, number: i64) -> Option<bool> {
        self.provider.inspect(&self.slot(number)).await.unwrap().map(|found| found.running)
    }

    async fn runs(&self, number: i64) {
        until("it runs", async || self.look(number).await == Some(true)).await;
    }

    async fn list(&self) -> Vec<There> {
        list(&*self.provider).await
    }

    fn there(&self, number: i64, running: bool) -> There {
        (self.slot(number), running)
    }

    async fn end(self) {
        for found in self.provider.list().await.unwrap() {
            self.provider.delete(&found.slot).await.unwrap();
        }
        until("nothing is left", async || self.list().await.is_empty()).await;
        self.trouble.expect_no_fault();
    }
}

/// A slot that is there, and whether something runs in it.
type There = (SlotName, bool);

async fn list(provider: &dyn Provider) -> Vec<There> {
    provider.list().await.unwrap().into_iter().map(|Found { slot, running, .. }| (slot, running)).collect()
}

/// Slots that are processes, each of which runs until it is ended.
fn process() -> Made {
    Box::pin(async {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_owned();
        let made = move |installation| -> Arc<dyn Provider> {
            let command = ["sh", "-c", "sleep 1000 & wait"].map(str::to_owned).to_vec();
            Arc::new(ProcessProvider::new(path.clone(), command, installation))
        };
        Kind::new(new_installation(), made, folder)
    })
}

/// Slots that are containers.
fn docker() -> Made {
    Box::pin(async {
        let engine = Engine::shared().await;
        let image = engine.image(&Recipe::script("trap 'exit 0' TERM; sleep 1000 & wait")).await;
        let relay = Relay::to(&engine.host).await;
        let host = Some(format!("tcp://{}", relay.address));
        let config = DockerConfig { host, image, ..DockerConfig::default() };
        let installation = new_installation();
        let ours = engine.ours(&format!("greenroom.installation={installation}"));
        let made =
            move |installation| -> Arc<dyn Provider> { Arc::new(DockerProvider::new(config.clone(), installation)) };
        Kind::new(installation, made, (relay, ours))
    })
}

/// Slots that are services of a swarm that only this test has.
fn swarm() -> Made {
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

impl Trouble for Arc<CoolifyScene> {
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

/// Slots that are applications of a Coolify that is none.
fn coolify(dialect: Dialect) -> Made {
    Box::pin(async move {
        let scene = Arc::new(CoolifyScene::new(|settings| settings.dialect = dialect).await);
        let processes = scene.clone();
        let made = move |installation: String| -> Arc<dyn Provider> {
            Arc::new(processes.process_of(&installation, processes.config()))
        };
        Kind::new(new_installation(), made, scene)
    })
}

/// Slots that are jobs of a Nomad that runs nothing, and takes no mistake.
fn nomad() -> Made {
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

#[rstest]
#[case::process(process())]
#[case::docker(docker())]
#[case::swarm(swarm())]
#[case::nomad(nomad())]
#[case::coolify(coolify(Dialect::Posts))]
#[case::coolify_before_4_2(coolify(Dialect::Gets))]
#[tokio::test]
async fn what_was_never_made_is_not_there_and_can_be_stopped_and_deleted(#[case] kind: Made) {
    let kind = kind.await;
    assert_eq!(kind.list().await, []);
    assert_eq!(kind.look(1).await, None);
    kind.provider.stop(&kind.slot(1), true).await.unwrap();
    kind.provider.delete(&kind.slot(1)).await.unwrap();
    kind.provider.ping().await.unwrap();
    assert_eq!(kind.provider.last_lines(&kind.slot(1)).await.unwrap(), None);
    kind.end().await;
}

#[rstest]
#[case::process(process())]
#[case::docker(docker())]
#[case::swarm(swarm())]
#[case::nomad(nomad())]
#[case::coolify(coolify(Dialect::Posts))]
#[case::coolify_before_4_2(coolify(Dialect::Gets))]
#[tokio::test]
async fn a_slot_that_is_made_twice_is_there_once_and_nothing_runs_in_it(#[case] kind: Made) {
    let kind = kind.await;
    let first = kind.provider.create(&kind.waiting(1)).await.unwrap();
    assert_eq!(kind.look(1).await, Some(false));
    assert_eq!((kind.again)().create(&kind.waiting(1)).await.unwrap(), first);
    assert_eq!(kind.list().await, [kind.there(1, false)]);
    kind.end().await;
}

#[rstest]
#[case::process(process())]
#[case::docker(docker())]
#[case::swarm(swarm())]
#[case::nomad(nomad())]
#[case::coolify(coolify(Dialect::Posts))]
#[case::coolify_before_4_2(coolify(Dialect::Gets))]
#[tokio::test]
async fn a_slot_that_was_made_can_be_started_and_making_it_again_leaves_it_running(#[case] kind: Made) {
    let kind = kind.await;
    kind.provider.create(&kind.waiting(1)).await.unwrap();
    kind.provider.start(&kind.waiting(1)).await.unwrap();
    kind.runs(1).await;
    kind.provider.create(&kind.waiting(1)).await.unwrap();
    assert_eq!(kind.list().await, [kind.there(1, true)]);
    kind.end().await;
}

#[rstest]
#[case::process(process())]
#[case::docker(docker())]
#[case::swarm(swarm())]
#[case::nomad(nomad())]
#[case::coolify(coolify(Dialect::Posts))]
#[case::coolify_before_4_2(coolify(Dialect::Gets))]
#[tokio::test]
async fn a_start_that_is_repeated_leaves_what_it_started_running(#[case] kind: Made) {
    let kind = kind.await;
    for spec in [kind.spec(1, "a"), kind.waiting(2)] {
        let first = kind.provider.start(&spec).await.unwrap();
        until("it runs", async || kind.provider.inspect(&spec.slot).await.unwrap().is_some_and(|it| it.running)).await;
        // Its answer was lost, and another process asks.
        assert_eq!((kind.again)().start(&spec).await.unwrap(), first);
    }
    assert_eq!(kind.list().await, [kind.there(1, true), kind.there(2, true)]);
    kind.end().await;
}

#[rstest]
#[case::process(process())]
#[case::docker(docker())]
#[case::swarm(swarm())]
#[case::nomad(nomad())]
#[case::coolify(coolify(Dialect::Posts))]
#[case::coolify_before_4_2(coolify(Dialect::Gets))]
#[tokio::test]
async fn a_start_for_another_connection_replaces_what_runs(#[case] kind: Made) {
    let kind = kind.await;
    kind.provider.start(&kind.spec(1, "a")).await.unwrap();
    kind.provider.start(&kind.spec(1, "b")).await.unwrap();
    until("one runs", async || kind.list().await == [kind.there(1, true)]).await;
    kind.end().await;
}

#[rstest]
#[case::process(process())]
#[case::docker(docker())]
#[case::swarm(swarm())]
#[case::nomad(nomad())]
#[case::coolify(coolify(Dialect::Posts))]
#[case::coolify_before_4_2(coolify(Dialect::Gets))]
#[tokio::test]
async fn a_slot_that_is_stopped_is_there_and_can_be_stopped_and_started_again(#[case] kind: Made) {
    let kind = kind.await;
    kind.provider.start(&kind.spec(1, "a")).await.unwrap();
    for _ in 0..2 {
        kind.provider.stop(&kind.slot(1), true).await.unwrap();
        until("it is there and does not run", async || kind.look(1).await == Some(false)).await;
    }
    kind.provider.start(&kind.spec(1, "b")).await.unwrap();
    kind.runs(1).await;
    kind.end().await;
}

#[rstest]
#[case::process(process())]
#[case::docker(docker())]
#[case::swarm(swarm())]
#[case::nomad(nomad())]
#[case::coolify(coolify(Dialect::Posts))]
#[case::coolify_before_4_2(coolify(Dialect::Gets))]
#[tokio::test]
async fn a_slot_that_is_deleted_is_gone_also_while_it_ran(#[case] kind: Made) {
    let kind = kind.await;
    kind.provider.start(&kind.spec(1, "a")).await.unwrap();
    kind.provider.start(&kind.spec(2, "b")).await.unwrap();
    kind.runs(2).await;
    for _ in 0..2 {
        kind.provider.delete(&kind.slot(1)).await.unwrap();
        assert_eq!(kind.look(1).await, None);
    }
    assert_eq!(kind.list().await, [kind.there(2, true)]);
    kind.end().await;
}

#[rstest]
#[case::process(process())]
#[case::docker(docker())]
#[case::swarm(swarm())]
#[case::nomad(nomad())]
#[case::coolify(coolify(Dialect::Posts))]
#[case::coolify_before_4_2(coolify(Dialect::Gets))]
#[tokio::test]
async fn what_was_made_before_a_crash_is_listed_after_it_and_nothing_of_anyone_else(#[case] kind: Made) {
    let kind = kind.await;
    kind.provider.start(&kind.spec(1, "a")).await.unwrap();
    kind.provider.start(&kind.spec(2, "b")).await.unwrap();
    kind.provider.stop(&kind.slot(2), true).await.unwrap();
    let after = (kind.again)();
    let expected = [kind.there(1, true), kind.there(2, false)];
    until("all of it is listed", async || list(&*after).await == expected).await;
    assert_eq!(list(&*kind.stranger).await, []);
    assert_eq!(kind.stranger.inspect(&kind.slot(1)).await.unwrap(), None);
    // Nor does it touch what is not its own.
    kind.stranger.stop(&kind.slot(1), true).await.unwrap();
    kind.stranger.delete(&kind.slot(1)).await.unwrap();
    assert_eq!(kind.look(1).await, Some(true));
    after.stop(&kind.slot(1), true).await.unwrap();
    until("it does not run", async || kind.look(1).await == Some(false)).await;
    kind.end().await;
}

#[rstest]
#[case::process(process())]
#[case::docker(docker())]
#[case::swarm(swarm())]
#[case::nomad(nomad())]
#[case::coolify(coolify(Dialect::Posts))]
#[case::coolify_before_4_2(coolify(Dialect::Gets))]
#[tokio::test]
async fn a_start_that_is_given_up_at_any_moment_can_be_made_again(#[case] kind: Made) {
    let kind = kind.await;
    for (number, moment) in [0, 2, 10, 40, 80, 160].into_iter().enumerate() {
        let spec = kind.spec(1, &format!("connection-{number}"));
        let patience = Duration::from_millis(moment);
        let _ = tokio::time::timeout(patience, kind.provider.start(&spec)).await;
        (kind.again)().start(&spec).await.unwrap();
        kind.runs(1).await;
    }
    until("there is one of it", async || kind.list().await == [kind.there(1, true)]).await;
    kind.end().await;
}

/// Makes a call until it works, as whoever calls a provider does.
async fn in_the_end<T>(mut call: impl AsyncFnMut() -> Result<T, ProviderError>) -> T {
    for _ in 0..10 {
        match call().await {
            Ok(answer) => return answer,
            Err(error) => assert!(error.may_help, "{error}"),
        }
    }
    panic!("it does not work however often it is tried");
}

#[rstest]
#[case::process(process())]
#[case::docker(docker())]
#[case::swarm(swarm())]
#[case::nomad(nomad())]
#[case::coolify(coolify(Dialect::Posts))]
#[case::coolify_before_4_2(coolify(Dialect::Gets))]
#[tokio::test]
async fn answers_that_are_late_change_nothing(#[case] kind: Made) {
    let kind = kind.await;
    kind.trouble.delay(4);
    kind.provider.create(&kind.waiting(1)).await.unwrap();
    kind.provider.start(&kind.spec(1, "a")).await.unwrap();
    kind.runs(1).await;
    kind.trouble.delay(2);
    kind.provider.stop(&kind.slot(1), true).await.unwrap();
    until("it does not run", async || kind.look(1).await == Some(false)).await;
    kind.trouble.delay(1);
    kind.provider.delete(&kind.slot(1)).await.unwrap();
    assert_eq!(kind.look(1).await, None);
    kind.end().await;
}

#[rstest]
#[case::process(process())]
#[case::docker(docker())]
#[case::swarm(swarm())]
#[case::nomad(nomad())]
#[case::coolify(coolify(Dialect::Posts))]
#[case::coolify_before_4_2(coolify(Dialect::Gets))]
#[tokio::test]
async fn answers_that_are_lost_are_made_up_for_by_asking_again(#[case] kind: Made) {
    let kind = kind.await;
    kind.trouble.lose(1);
    in_the_end(async || kind.provider.create(&kind.waiting(1)).await).await;
    assert_eq!(kind.list().await, [kind.there(1, false)]);
    for lost in 1..=3 {
        kind.trouble.lose(lost);
        let spec = kind.spec(1, &format!("connection-{lost}"));
        in_the_end(async || kind.provider.start(&spec).await).await;
        kind.runs(1).await;
        assert_eq!(kind.list().await, [kind.there(1, true)]);
    }
    kind.trouble.lose(1);
    in_the_end(async || kind.provider.stop(&kind.slot(1), true).await).await;
    until("it does not run", async || kind.look(1).await == Some(false)).await;
    kind.trouble.lose(1);
    in_the_end(async || kind.provider.delete(&kind.slot(1)).await).await;
    assert_eq!(kind.look(1).await, None);
    kind.end().await;
}
