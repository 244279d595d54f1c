//! A core with running pools: everything behind the API, with a fake provider that starts no processes.

use std::sync::Arc;

use domain::{BotId, SlotName, SlotStatus, Status};
use greenroom::deployment::{Deployment, Parts, ProviderTimeouts};
use greenroom::keepers::leader::Leadership;
use greenroom::keepers::listening::ListeningWindow;
use greenroom::keepers::retention::Retention;
use greenroom::keepers::{self, KeeperList, RunReport};
use greenroom::lifecycle::callbacks::Caller;
use greenroom::providers::Provider;
use greenroom::providers::ec2::Runners;
use greenroom::store::{BotRow, Holder, PoolRow, SlotRow};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{Backend, CoreFixture, Database, Fake, Plan, found, until};

#[derive(Debug)]
pub struct DeploymentFixture {
    pub core: CoreFixture,
    pub deployment: Deployment,
    pub fake: Arc<Fake>,
    keeper_list: KeeperList,
    _ending: DropGuard,
}

/// Runs the pools of a core, with any provider.
#[derive(Debug)]
pub struct Works {
    pub deployment: Deployment,
    pub keeper_list: KeeperList,
    _ending: DropGuard,
}

impl Works {
    pub async fn begin(core: &CoreFixture, gate: u32, provider: Arc<dyn Provider>, timeouts: ProviderTimeouts) -> Self {
        let ending = CancellationToken::new();
        let pools = core.store.pools().await.unwrap();
        let providers = pools.into_iter().map(|pool| (pool.name, provider.clone())).collect();
        let replica = Holder { id: uuid::Uuid::new_v4(), name: "fixture".to_owned() };
        let deployment = Deployment::new(Parts {
            context: core.context.clone(),
            signals: core.signals.clone(),
            lifecycle: core.lifecycle.clone(),
            placement: core.placement.clone(),
            providers: Arc::new(providers),
            deadlines: core.deadlines.clone(),
            max_concurrent: gate,
            max_recovery_attempts: 3,
            public_url: "http://greenroom.test".to_owned(),
            timeouts,
            replica: replica.clone(),
            ending: ending.clone(),
        });
        let (keeper_list, expiry, _) = keepers::build_keepers(keepers::Parts {
            context: core.context.clone(),
            signals: core.signals.clone(),
            lifecycle: core.lifecycle.clone(),
            placement: core.placement.clone(),
            deployment: deployment.clone(),
            deadlines: &core.deadlines,
            listening: ListeningWindow::new(core.clock.clone()),
            runners: Runners::default(),
            stats_kept: None,
            retention: Retention { bots: None, transcripts: None, idempotency_keys: None, failures: None },
        });
        tokio::spawn(deployment.clone().work());
        tokio::spawn(deployment.clone().describe());
        tokio::spawn(deployment.clone().keep_pinging());
        let leadership = Leadership::new(core.store.clone(), replica);
        tokio::spawn(expiry.keep_time(leadership, ending.clone()));
        Self { deployment, keeper_list, _ending: ending.drop_guard() }
    }
}

impl DeploymentFixture {
    /// A provider that does everything at once, and a deploy gate of four.
    pub async fn new(backend: Backend, pools: impl IntoIterator<Item = PoolRow>) -> Self {
        Self::with(backend, pools, 4, Fake::default()).await
    }

    pub async fn with(backend: Backend, pools: impl IntoIterator<Item = PoolRow>, gate: u32, fake: Fake) -> Self {
        Self::planned(backend, &Plan::of(pools), gate, fake).await
    }

    pub async fn planned(backend: Backend, plan: &Plan, gate: u32, fake: Fake) -> Self {
        Self::on(CoreFixture::planned(Database::new(backend).await.into(), plan).await, gate, fake.into()).await
    }

    /// Runs the pools of a core.
    pub async fn on(core: CoreFixture, gate: u32, fake: Arc<Fake>) -> Self {
        Self::patient(core, gate, fake, ProviderTimeouts::default()).await
    }

    /// Like `on`, but with these time limits for the provider's calls.
    pub async fn patient(core: CoreFixture, gate: u32, fake: Arc<Fake>, timeouts: ProviderTimeouts) -> Self {
        let Works { deployment, keeper_list, _ending } = Works::begin(&core, gate, fake.clone(), timeouts).await;
        let fixture = Self { core, deployment, fake, keeper_list, _ending };
        fixture.reconcile();
        fixture
    }

    /// Runs a keeper once, and returns its report.
    pub async fn keep(&self, name: &str) -> RunReport {
        let keeper = self.keeper_list.iter().find(|keeper| keeper.name() == name).unwrap();
        keeper.request_full_run();
        keeper.run().await.unwrap()
    }

    /// Another server on the same database, with the same clock and the same provider.
    pub async fn beside(&self, gate: u32) -> Self {
        let plan = Plan { clock: self.core.clock.clone(), ..Plan::of([]) };
        Self::on(CoreFixture::planned(self.core.database.clone(), &plan).await, gate, self.fake.clone()).await
    }

    /// Runs the keepers that are the safety net, without a signal and without waiting for them.
    pub fn reconcile(&self) {
        let net = ["queue_expiry", "deployment", "warm_buffer"];
        for keeper in self.keeper_list.iter().filter(|keeper| net.contains(&keeper.name())) {
            keeper.request_full_run();
            let keeper = keeper.clone();
            tokio::spawn(async move { keeper.run().await.unwrap() });
        }
    }

    pub async fn bot(&self, bot: BotId) -> BotRow {
        self.core.store.bot(bot).await.unwrap().unwrap()
    }

    pub async fn slot(&self, name: &str) -> Option<SlotRow> {
        self.core.store.slot(&SlotName::stored(name.to_owned())).await.unwrap()
    }

    /// The names and the status of all slots.
    pub async fn slots(&self) -> Vec<(String, SlotStatus)> {
        let slots = self.core.store.slots(None, None).await.unwrap();
        slots.into_iter().map(|slot| (slot.name.to_string(), slot.status)).collect()
    }

    /// The slot that a bot has now.
    pub async fn slot_of(&self, bot: BotId) -> Option<SlotRow> {
        self.core.store.slot_of(bot).await.unwrap()
    }

    /// The slot that a bot was given.
    pub async fn place_of(&self, bot: BotId) -> Option<String> {
        self.bot(bot).await.slot.map(|slot| slot.to_string())
    }

    /// The bots that wait for a slot, in the order of the queue.
    pub async fn queue(&self) -> Vec<BotId> {
        self.core.store.queue().await.unwrap().into_iter().map(|entry| entry.bot_id).collect()
    }

    /// How many deployments are inside the deploy gate, and how many wait for it.
    pub async fn at_gate(&self) -> (usize, usize) {
        let all = self.core.store.deployments().await.unwrap();
        let active = all.iter().filter(|deployment| deployment.active).count();
        (active, all.len() - active)
    }

    /// Waits until the provider has started the bot, and returns the slot.
    pub async fn runs(&self, bot: BotId) -> SlotName {
        found("the bot runs", async || {
            let name = self.bot(bot).await.slot?;
            let slot = self.core.store.slot(&name).await.unwrap()?;
            let deploying = self.core.store.deployments().await.unwrap().iter().any(|row| row.slot == name);
            (slot.bot_id == Some(bot) && slot.status != SlotStatus::Creating && !deploying).then_some(name)
        })
        .await
    }

    /// The caller of a running bot, made from the data that its provider got.
    pub async fn caller(&self, bot: BotId) -> Caller {
        let slot = self.runs(bot).await;
        let data = self.fake.running(&slot).unwrap().environment["BOT_DATA"].clone();
        let data: serde_json::Value = serde_json::from_str(&data).unwrap();
        let claim = self.core.lifecycle.claim(data["token"].as_str().unwrap()).unwrap();
        assert_eq!(claim.bot, bot);
        Caller { claim, connection_id: claim.connection }
    }

    /// Lets a deployed bot start and end.
    pub async fn lives(&self, bot: BotId) {
        let caller = self.caller(bot).await;
        self.core.lifecycle.started(caller, None).await.unwrap();
        self.core.lifecycle.joined(caller).await.unwrap();
        assert_eq!(self.core.exited(caller, 0).await.unwrap(), Status::Completed);
    }

    /// Waits until a bot has ended, and returns its status and its reason.
    pub async fn end_of(&self, bot: BotId) -> (Status, Option<String>) {
        found("the bot has ended", async || {
            let end = self.core.stands(bot).await;
            end.0.is_ended().then_some(end)
        })
        .await
    }

    /// Waits until a slot has a status.
    pub async fn slot_is(&self, name: &str, status: SlotStatus) -> SlotRow {
        let what = format!("{name} is {status}");
        found(&what, async || self.slot(name).await.filter(|slot| slot.status == status)).await
    }

    /// Requests a bot that gets a slot, and waits until the provider is starting it.
    pub async fn starting(&self, number: usize) -> BotId {
        let bot = self.core.reserved(number).await;
        let slot = self.bot(bot).await.slot.unwrap();
        until("its start is in progress", async || self.fake.starts().contains(&slot)).await;
        bot
    }

    /// Waits until no deployment is inside the gate or waits for it.
    pub async fn gate_is_free(&self) {
        until("no deployment is at the gate", async || self.at_gate().await == (0, 0)).await;
    }
}
