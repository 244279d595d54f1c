//! 100 slots and 300 bots at a Coolify that accepts 200 requests a minute, with a minute of two seconds. No bot fails.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::{SlotName, SlotStatus, Status};
use greenroom::clock::Clock;
use greenroom::deployment::{Deployment, ProviderTimeouts};
use greenroom::lifecycle::callbacks::Caller;
use greenroom::store::{BotRow, PoolRow, SlotRow};
use rstest::rstest;
use tokio::task::JoinSet;

use crate::support::{
    Backend, COOLIFY_TOKEN, CoolifyEvent, CoolifyFixture, CoolifyOperation as Operation, CoreFixture, Database, Plan,
    Works, bot_request, pool, until, waits,
};

const MINUTE: Duration = Duration::from_secs(2);
/// The default time limits, measured in these short minutes. A longer wait for a turn would be an error.
const TIMEOUTS: ProviderTimeouts = ProviderTimeouts {
    start: MINUTE.saturating_mul(15),
    stop: MINUTE.saturating_mul(2),
    inspect: MINUTE,
    pull_stall: MINUTE,
};
const DEPLOY: Duration = MINUTE.saturating_mul(30);
const REQUESTS: u32 = 200;
const GATE: u32 = 4;
/// How long a bot stays in its meeting.
const MEETING: Duration = Duration::from_millis(100);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// One server: everything behind the API, with its own provider for Coolify.
struct Replica {
    core: CoreFixture,
    works: Works,
}

impl Replica {
    async fn new(fixture: &CoolifyFixture, pool: &PoolRow) -> Arc<Self> {
        let mut plan = Plan { clock: Clock::System, ..Plan::of([pool.clone()]) };
        plan.deadlines.queue_poll = Duration::from_secs(1);
        plan.deadlines.deploy = DEPLOY;
        let core = CoreFixture::planned(fixture.database.clone(), &plan).await;
        let works = Works::begin(&core, GATE, Arc::new(fixture.process()), TIMEOUTS).await;
        Arc::new(Self { core, works })
    }

    /// Runs the keepers of the safety net from time to time.
    async fn keep(self: Arc<Self>, keepers: &[&str]) {
        loop {
            for keeper in self.works.keeper_list.iter().filter(|keeper| keepers.contains(&keeper.name())) {
                keeper.request_full_run();
                keeper.run().await.unwrap();
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }
}

/// Plays the agents in the containers, which wait and fetch their bots.
struct Agents {
    replica: Arc<Replica>,
    /// How many containers run in each slot.
    running: Mutex<HashMap<String, i64>>,
    /// The bots that have started, and how often.
    begun: Mutex<HashMap<String, usize>>,
    /// Broken rules.
    wrong: Mutex<Vec<String>>,
}

impl Agents {
    async fn play(self: Arc<Self>, mut events: tokio::sync::mpsc::UnboundedReceiver<CoolifyEvent>) {
        let mut agents: BTreeMap<(String, String), tokio::task::AbortHandle> = BTreeMap::new();
        let mut all = JoinSet::new();
        while let Some(event) = events.recv().await {
            match event {
                CoolifyEvent::Started { uuid, name, container, envs } => {
                    let has_token = envs.get("GREENROOM_SLOT_TOKEN").is_some_and(|token| token.len() > 10);
                    if envs.get("GREENROOM_SLOT") != Some(&name) || !has_token || envs.contains_key("BOT_DATA") {
                        self.complain(format!("{name} was started with {envs:?}"));
                    }
                    let running = {
                        let mut running = self.running.lock().unwrap();
                        let count = running.entry(uuid.clone()).or_default();
                        *count += 1;
                        *count
                    };
                    if running != 1 {
                        self.complain(format!("{running} run at once in {name}"));
                    }
                    let agent = all.spawn(self.clone().wait(SlotName::stored(name)));
                    agents.insert((uuid, container), agent);
                }
                CoolifyEvent::Stopped { uuid, container } => {
                    *self.running.lock().unwrap().entry(uuid.clone()).or_default() -= 1;
                    if let Some(agent) = agents.remove(&(uuid, container)) {
                        agent.abort();
                    }
                }
            }
            while let Some(ended) = all.try_join_next() {
                if ended.is_err_and(|error| error.is_panic()) {
                    self.complain("an agent broke".to_owned());
                }
            }
        }
    }

    fn complain(&self, what: String) {
        self.wrong.lock().unwrap().push(what);
    }

    /// Acts as an agent at the API: reports that it waits, and takes the slot's bot if that has not started yet.
    async fn wait(self: Arc<Self>, slot: SlotName) {
        let core = &self.replica.core;
        loop {
            if let Some(row) = core.store.slot(&slot).await.unwrap() {
                match row.bot_id {
                    None if row.status == SlotStatus::Creating && !core.store.is_at_gate(&slot).await.unwrap() => {
                        core.placement.report(slot.clone(), waits(&row)).await.unwrap();
                    }
                    Some(bot) => {
                        let bot = core.store.bot(bot).await.unwrap().unwrap();
                        if bot.slot.as_ref() == Some(&slot) && !bot.status.is_ended() && !bot.has_session {
                            self.run(&bot).await;
                        }
                    }
                    None => {}
                }
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    async fn run(&self, bot: &BotRow) {
        let core = &self.replica.core;
        let Some(caller) = caller(core, &self.replica.works.deployment, bot) else { return };
        *self.begun.lock().unwrap().entry(bot.id.to_string()).or_default() += 1;
        core.lifecycle.started(caller, None).await.unwrap();
        core.lifecycle.joined(caller).await.unwrap();
        tokio::time::sleep(MEETING).await;
        assert_eq!(core.exited(caller, 0).await.unwrap(), Status::Completed);
    }
}

fn caller(core: &CoreFixture, deployment: &Deployment, bot: &BotRow) -> Option<Caller> {
    let data = deployment.bot_data(bot)?;
    let claim = core.lifecycle.claim(data["token"].as_str()?).unwrap();
    Some(Caller { claim, connection_id: claim.connection })
}

/// The number of bots and slots, and other settings of the load.
struct Load {
    backend: Backend,
    replicas: usize,
    slots: i64,
    bots: usize,
    hot: bool,
    requests: u32,
    /// How often another client, which does not share the budget, sends a request to the same Coolify.
    others_ask_every: Option<Duration>,
}

/// Sends requests as another client, again and again.
async fn ask_as_another(url: String, every: Duration) {
    let client = reqwest::Client::new();
    loop {
        let _ = client.get(format!("{url}/api/v1/version")).bearer_auth(COOLIFY_TOKEN).send().await;
        tokio::time::sleep(every).await;
    }
}

/// Requests all bots at once. All of them complete, and the store agrees with Coolify.
async fn many(load: Load) {
    let Load { backend, replicas, slots, bots, hot, requests, others_ask_every } = load;
    let database: Arc<Database> = Database::new(backend).await.into();
    let fixture = CoolifyFixture::on(database, requests, MINUTE, |settings| {
        settings.deployments_at_once = 2;
        settings.deployment = Duration::from_millis(100);
        settings.stop = Duration::from_millis(60);
    })
    .await;
    let pool = PoolRow { max_slots: slots, hot, provider: "coolify".to_owned(), ..pool("meet") };
    let mut all = Vec::new();
    for _ in 0..replicas {
        all.push(Replica::new(&fixture, &pool).await);
    }
    let mut background = JoinSet::new();
    for replica in &all {
        // A slot that waits too long because of the other client may need recovery.
        let keepers: &[&str] = match others_ask_every {
            Some(_) => &["deployment", "warm_buffer", "recovery"],
            None => &["deployment", "warm_buffer"],
        };
        background.spawn(replica.clone().keep(keepers));
    }
    if let Some(every) = others_ask_every {
        background.spawn(ask_as_another(fixture.fake.url.clone(), every));
    }
    let agents = Arc::new(Agents {
        replica: all[0].clone(),
        running: Mutex::default(),
        begun: Mutex::default(),
        wrong: Mutex::default(),
    });
    background.spawn(agents.clone().play(fixture.fake.events()));

    let asked = std::time::Instant::now();
    let mut ids = Vec::new();
    for (number, replica) in all.iter().enumerate() {
        let own = (0..bots).filter(|bot| bot % replicas == number);
        ids.extend(replica.core.ask_at_once(own.map(bot_request)).await.into_iter().map(|reserved| reserved.bot.id));
    }
    let core = &all[0].core;
    let patience = std::time::Instant::now() + Duration::from_secs(180);
    for bot in ids {
        loop {
            let (status, reason) = core.stands(bot).await;
            assert!(!status.is_ended() || status == Status::Completed, "{bot} ended {status:?}, {reason:?}");
            if status == Status::Completed {
                break;
            }
            assert!(std::time::Instant::now() < patience, "{bot} stays {status:?} for ever");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
    let took = asked.elapsed();
    until("no slot is changing", async || {
        let rows = core.store.slots(None, None).await.unwrap();
        rows.iter().all(|row: &SlotRow| row.status == SlotStatus::Idle && row.bot_id.is_none())
    })
    .await;
    let rows = core.store.slots(None, None).await.unwrap();
    let calls = fixture.fake.calls();
    let applications = fixture.fake.applications();
    assert_eq!(rows.len(), applications.len());
    for row in &rows {
        let application = applications.iter().find(|one| one.name == row.name.as_str()).unwrap();
        assert_eq!(application.status.starts_with("running"), hot, "{application:?}");
        assert_eq!(row.provider_ref.as_ref(), Some(&application.uuid));
    }
    let own = [Operation::Describe, Operation::Start, Operation::Stop, Operation::Deployment, Operation::Logs];
    let counted: Vec<(Operation, usize)> = own.map(|operation| (operation, fixture.count(operation))).to_vec();
    let listings = fixture.count(Operation::List) + fixture.count(Operation::Deployments);
    eprintln!(
        "{bots} bots in {slots} slots took {took:?}: {} requests, {listings} of them looks, {} refused, {counted:?}",
        calls.len(),
        fixture.fake.throttled(),
    );
    let refused = calls.iter().filter(|call| call.status == 429 && call.operation != Some(Operation::Version)).count();
    assert_eq!(refused > 0, others_ask_every.is_some(), "{refused} requests were refused");
    assert!(agents.begun.lock().unwrap().values().all(|times| *times == 1), "a bot was run twice");
    assert_eq!(agents.begun.lock().unwrap().len(), bots);
    assert!(fixture.fake.most_deployments_at_once() <= GATE as usize, "{}", fixture.fake.most_deployments_at_once());
    let of_their_own: usize = counted.iter().map(|(_, count)| count).sum();
    // If another replica stops an application than the one that started it, this costs one more request.
    let most = bots * 7 + rows.len() * 2;
    assert!(of_their_own <= most || others_ask_every.is_some(), "{counted:?}");
    // At the end, the description of every slot is correct, also if those of two replicas crossed. Sync corrects them,
    // and finds nothing else to do.
    let sync = all[0].works.keeper_list.iter().find(|keeper| keeper.name() == "sync").unwrap();
    until("every slot is described", async || {
        let applications = fixture.fake.applications();
        let is_shown = |row: &SlotRow| {
            applications
                .iter()
                .any(|one| one.name == row.name.as_str() && one.description.as_ref() == Some(&row.description))
        };
        if rows.iter().all(is_shown) {
            return true;
        }
        assert_eq!(sync.run().await.unwrap().counts.values().sum::<u64>(), 0);
        tokio::time::sleep(MINUTE).await;
        false
    })
    .await;
    background.shutdown().await;
    assert_eq!(*agents.wrong.lock().unwrap(), Vec::<String>::new());
    fixture.no_violations();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_slots_and_three_hundred_bots_get_through_two_hundred_requests_a_minute_with_two_replicas_on_postgres()
 {
    let (backend, requests, others_ask_every) = (Backend::Postgres, REQUESTS, None);
    many(Load { backend, replicas: 2, slots: 100, bots: 300, hot: false, requests, others_ask_every }).await;
}

#[rstest]
#[case::stopped(false)]
#[case::hot(true)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bots_come_and_go_in_slots_of_one_server(#[case] hot: bool) {
    let (backend, requests, others_ask_every) = (Backend::Sqlite, REQUESTS, None);
    many(Load { backend, replicas: 1, slots: 10, bots: 30, hot, requests, others_ask_every }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_bot_fails_while_another_client_uses_up_the_limit_of_coolify() {
    // The other client leaves so few requests that some of ours are refused, also on a slow machine.
    let (backend, requests, others_ask_every) = (Backend::Sqlite, 120, Some(MINUTE / 90));
    many(Load { backend, replicas: 2, slots: 10, bots: 30, hot: false, requests, others_ask_every }).await;
}
