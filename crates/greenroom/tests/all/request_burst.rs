//! Three hundred requests at once on a small, a medium and a large pool. The bots end at different times and in
//! different ways. A slot never has two bots, a bot never two slots, the limit of slots holds, and the queue keeps its
//! order. Finally every bot has ended and every slot is free.

use std::collections::{HashMap, HashSet};

use domain::EventId;
use greenroom::store::{EventRow, Kind};
use rstest::rstest;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::support::{Backend, Client, Database, Process, expect_no_two_at_once, meet_link, process_pool, until};

const REQUESTS: usize = 300;
const USERS: usize = 3;
/// Agents wait in the slots, and each slot is recycled after three bots.
const HOT: &str = "standby = \"running\"\nrecycle_after = 3";

/// Stays until it gets the command to leave, or for the time in its configuration, and ends as the configuration says.
const BOT: &str = r#"
    life=${BOT_DATA#*\"life\":\"}; life=${life%%\"*}
    code=${BOT_DATA#*\"code\":\"}; code=${code%%\"*}
    case $life in stays) read leave; exit 0;; esac
    echo '{"event": "joined"}'
    sleep $life
    exit $code
"#;

fn dice(sides: u128) -> u128 {
    Uuid::new_v4().as_u128() % sides
}

/// A random configuration of a bot.
fn any_life() -> Value {
    let code = [0, 0, 1, 7][dice(4) as usize];
    json!({"life": format!("0.{:02}", dice(10)), "code": code.to_string()})
}

struct Storm {
    database: Database,
    servers: Vec<Process>,
    users: Vec<Client>,
    slots: usize,
    is_hot: bool,
}

impl Storm {
    async fn brew(backend: Backend, servers: usize, slots: usize, settings: &str) -> Self {
        let database = Database::new(backend).await;
        let pool = process_pool("meet", &format!("max_slots = {slots}\n{settings}"), BOT);
        let config = format!("[deploy]\nmax_concurrent = 8\n{pool}");
        let mut running = Vec::new();
        for _ in 0..servers {
            running.push(Process::start_configured(&database, &config).await);
        }
        let mut users = Vec::new();
        for _ in 0..USERS {
            users.push(running[0].admin().user(1_000).await);
        }
        Self { database, servers: running, users, slots, is_hot: settings == HOT }
    }

    /// Sends all requests at once, each as another user, at the servers in turn.
    async fn ask(&self, bot_requests: impl IntoIterator<Item = Value>) -> Vec<(Client, Value)> {
        let mut requests = JoinSet::new();
        for (number, bot_request) in bot_requests.into_iter().enumerate() {
            let user = self.users[number % USERS].on(&self.servers[number % self.servers.len()].url);
            requests.spawn(async move {
                let bot = user.ask(bot_request).await;
                (user, bot)
            });
        }
        requests.join_all().await
    }

    /// The waiting bots, in the order of the queue.
    async fn queue(&self) -> Vec<Value> {
        let mut queue = self.servers[0].admin().get("/admin/queue").await;
        queue["entries"].as_array_mut().map(std::mem::take).unwrap()
    }

    /// Checks again and again, until every bot has ended and every slot is free.
    async fn watch(&self) {
        let mut reader = self.database.reader().await;
        until("every bot has ended and every slot is free", async || {
            let open = "SELECT CAST(id AS TEXT), coalesce(slot, CAST(id AS TEXT)) FROM bots
                         WHERE status NOT IN ('completed', 'failed')";
            let open = reader.pairs(open).await;
            expect_one_each(&open);
            let slots = reader.pairs("SELECT name, coalesce(CAST(bot_id AS TEXT), status) FROM slots").await;
            assert!(slots.len() <= self.slots, "{} slots in a pool of {}", slots.len(), self.slots);
            let taken: Vec<_> = slots.into_iter().filter(|(_, bot)| bot.parse::<Uuid>().is_ok()).collect();
            expect_one_each(&taken);
            open.is_empty() && taken.is_empty()
        })
        .await;
    }

    async fn events(&self) -> Vec<EventRow> {
        self.database.open().await.events_after(EventId(0), 1_000_000).await.unwrap()
    }
}

fn expect_one_each(pairs: &[(String, String)]) {
    let (left, right): (HashSet<_>, HashSet<_>) = pairs.iter().cloned().unzip();
    assert_eq!((left.len(), right.len()), (pairs.len(), pairs.len()), "one slot for each bot: {pairs:?}");
}

/// Asserts that bots that waited together got their slots in the order of the queue.
fn expect_order(events: &[EventRow], queue: &[Value]) {
    let served = events
        .iter()
        .filter(|event| event.kind == Kind::Assigned || event.reason.is_some() && event.kind == Kind::Created)
        .map(|event| event.bot_id.to_string());
    let positions: HashMap<&str, usize> =
        queue.iter().enumerate().map(|(position, entry)| (entry["bot_id"].as_str().unwrap(), position)).collect();
    let served: Vec<usize> = served.filter_map(|bot| positions.get(bot.as_str()).copied()).collect();
    assert!(served.is_sorted(), "{served:?}");
}

/// Asserts that a bot ended as its configuration says, unless its time in the queue was over.
fn expect_own_end(bot: &Value, wanted: &Value) {
    let code = wanted["config"]["code"].as_str().unwrap();
    let found = (bot["status"].as_str().unwrap(), bot["reason"].as_str().unwrap());
    match (bot["slot"].is_null(), code) {
        (true, _) => assert_eq!(found, ("failed", "queue_timeout"), "{bot}"),
        (false, "0") => assert_eq!(found, ("completed", "finished"), "{bot}"),
        (false, code) => {
            assert_eq!(found, ("failed", "crashed"), "{bot}");
            assert_eq!(bot["error"], format!("the command ended with code {code}"));
        }
    }
}

async fn weather(storm: Storm, patience_ms: u64) {
    let stay = |number| json!({"meeting_url": meet_link(number), "config": {"life": "stays"}});
    let first = storm.ask((0..storm.slots).map(stay)).await;
    assert!(first.iter().all(|(_, bot)| bot["slot"].is_string()));
    let bot_requests = (storm.slots..).take(REQUESTS).map(|number| {
        json!({"meeting_url": meet_link(number), "priority": 50 * dice(3), "queue_timeout_ms": patience_ms,
               "config": any_life()})
    });
    let asked = storm.ask(bot_requests).await;
    assert!(asked.iter().all(|(_, bot)| bot["status"] == "queued" && bot["queue_position"].is_i64()));
    let queue = storm.queue().await;
    assert_eq!(queue.len(), REQUESTS);
    assert!(queue.iter().map(|entry| entry["position"].as_u64().unwrap()).eq(1..=REQUESTS as u64));
    assert!(queue.iter().map(|entry| entry["priority"].as_i64().unwrap()).is_sorted());

    let mut leaving = JoinSet::new();
    for (user, bot) in first {
        leaving.spawn(async move { user.stop(bot["id"].as_str().unwrap()).await });
    }
    storm.watch().await;
    leaving.join_all().await;

    let events = storm.events().await;
    expect_no_two_at_once(&events);
    expect_order(&events, &queue);
    for (user, asked) in &asked {
        let bot = user.show_bot(asked["id"].as_str().unwrap()).await;
        expect_own_end(&bot, asked);
    }
    until("every slot is idle", async || {
        let slots = storm.servers[0].admin().get("/admin/slots?status=idle").await;
        slots["slots"].as_array().unwrap().len() == storm.slots
    })
    .await;
    let left = storm.database.running().into_iter().filter(|process| !(storm.is_hot && process.is_agent));
    assert_eq!(left.collect::<Vec<_>>(), [], "nothing is left in any slot");
}

#[rstest]
#[case::one(1, 4_000, "")]
#[case::five(5, 8_000, "")]
#[case::five_hot(5, 8_000, HOT)]
#[case::hundred(100, 8_000, "")]
#[tokio::test(flavor = "multi_thread")]
async fn three_hundred_requests_are_served_in_order_by_one_server_on_sqlite(
    #[case] slots: usize,
    #[case] patience_ms: u64,
    #[case] settings: &str,
) {
    weather(Storm::brew(Backend::Sqlite, 1, slots, settings).await, patience_ms).await;
}

#[rstest]
#[case::one(1, 4_000, "")]
#[case::five(5, 8_000, "")]
#[case::five_hot(5, 8_000, HOT)]
#[case::hundred(100, 8_000, "")]
#[tokio::test(flavor = "multi_thread")]
async fn three_hundred_requests_are_served_in_order_by_two_servers_on_one_postgres(
    #[case] slots: usize,
    #[case] patience_ms: u64,
    #[case] settings: &str,
) {
    weather(Storm::brew(Backend::Postgres, 2, slots, settings).await, patience_ms).await;
}
