//! Many bots with different requirements on many runners of different classes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws::{Class, RunnerState};
use domain::{Attributes, Requirements, UsageClass, requirements};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::token_of;
use crate::requirements::{CLASSES, Dice, kind};
use crate::support::{Backend, Client, Cloud, Database, Life, Machine, Process, meet_link, until};

const OF_EACH: u32 = 25;
const BOTS: usize = 500;

/// Longer times than usual, because moto answers one request at a time.
const SETTINGS: &str = "max_slots = 200\n\nheartbeat_interval = \"20s\"\nhealthy_within = \"5m\"\nregistration_timeout = \"1m\"\nclaim_timeout = \"10m\"";

/// Which bot ran on which machine, in the order of their starts.
type Ran = Arc<Mutex<Vec<(String, String)>>>;

fn classes() -> Vec<Class> {
    let class = |(name, cpu, mem): (&str, u32, u32)| Class {
        name: name.to_owned(),
        cpu,
        mem,
        instance_types: vec![format!("c6i.{name}")],
        max: OF_EACH,
        spot_max: OF_EACH,
        min_idle: 0,
    };
    CLASSES.map(class).to_vec()
}

#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_mixed_requests_on_two_hundred_runners_of_moto_each_run_where_they_fit() {
    let cloud = Cloud::of_classes(classes()).await;
    let each = CLASSES.map(|(name, ..)| {
        format!("{name} = {{ instance_types = [\"c6i.{name}\"], max = {OF_EACH}, spot_max = {OF_EACH} }}")
    });
    let settings = format!("{SETTINGS}\nclasses = {{ {} }}", each.join(", "));
    let config = format!("deploy.max_concurrent = 16\n{}", cloud.pool("meet", &settings));
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start_configured(&database, &config).await;
    let token = token_of(&database, "meet").await;
    let (admin, user) = (server.admin(), server.admin().user(BOTS as i64).await);

    let (ran, over) = (Ran::default(), CancellationToken::new());
    let mut machines: BTreeMap<String, Attributes> = BTreeMap::new();
    let mut agents = tokio::task::JoinSet::new();
    for (class, ..) in CLASSES {
        for usage in UsageClass::ALL {
            for instance in cloud.grow(&format!("{class}-{usage}"), OF_EACH as i32).await {
                machines.insert(instance.clone(), kind(class, usage));
                let (status, answer) = Machine::register(&admin, &token, &instance).await;
                assert_eq!(status, StatusCode::OK, "{answer}");
                let client = admin.with(answer["token"].as_str().unwrap());
                agents.spawn(agent(client, instance, ran.clone(), over.clone()));
            }
        }
    }
    assert_eq!(machines.len(), 200);

    let mut dice = Dice(11);
    let fits = |needs: Option<&Requirements>, kind: &Attributes| requirements::fits(needs, kind);
    let mut wanted: BTreeMap<String, Option<Requirements>> = BTreeMap::new();
    let mut refused = 0;
    for number in 0..BOTS {
        let asked = dice.asked();
        let needs: Option<Requirements> = asked.clone().map(|asked| serde_json::from_value(asked).unwrap());
        let ask = json!({"meeting_url": meet_link(number), "requirements": asked, "queue_timeout_ms": 600_000});
        let (status, body) = user.post("/bots", ask).await;
        if machines.values().any(|kind| fits(needs.as_ref(), kind)) {
            assert_eq!(status, StatusCode::CREATED, "{body}");
            wanted.insert(body["bot"]["id"].as_str().unwrap().to_owned(), needs);
        } else {
            assert_eq!((status, &body["code"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!("invalid")), "{body}");
            refused += 1;
        }
    }
    assert!(refused > 10 && wanted.len() > 300, "{refused} {}", wanted.len());
    until_done(&user, &ran, wanted.len()).await;
    over.cancel();
    while let Some(ended) = agents.join_next().await {
        ended.unwrap();
    }

    let ran = ran.lock().unwrap().clone();
    assert_eq!(ran.len(), wanted.len(), "each bot once");
    for (bot, instance) in &ran {
        let needs = wanted.remove(bot).expect("a bot ran twice, or is unknown");
        assert!(fits(needs.as_ref(), &machines[instance]), "{needs:?} on {}", machines[instance]);
    }
    assert!(wanted.is_empty());
    until("every runner is idle again", async || {
        let runners = cloud.runners(classes()).await;
        runners.len() == 200 && runners.iter().all(|runner| runner.state == RunnerState::Idle)
    })
    .await;
    // No group is larger than its limit.
    for (class, ..) in CLASSES {
        for usage in UsageClass::ALL {
            assert_eq!(cloud.machines(&format!("{class}-{usage}")).await.len(), OF_EACH as usize);
        }
    }
}

/// Waits until this many bots have ended, all of them completed. The time depends on moto.
async fn until_done(user: &Client, ran: &Ran, bots: usize) {
    // Counts the starts that the agents report. Lists of hundreds of bots would keep the server busy.
    let begun = || ran.lock().unwrap().len();
    let mut before = begun();
    while before < bots {
        until("another bot begins", async || begun() > before).await;
        before = begun();
    }
    until("every bot has ended", async || {
        user.get("/bots/active?limit=1").await["bots"].as_array().unwrap().is_empty()
    })
    .await;
    let ended = user.get("/bots/status").await;
    assert_eq!(ended["by_status"]["completed"], json!(bots), "{}", ended["by_status"]);
}

/// An agent that takes one bot after the other. Each bot leaves at once.
async fn agent(client: Client, instance: String, ran: Ran, over: CancellationToken) {
    let beating = tokio::spawn(beat(client.clone()));
    while !over.is_cancelled() {
        let asked = tokio::select! {
            asked = client.try_send(Method::GET, "/agent/assignment?wait_ms=20000", None) => asked.unwrap(),
            () = over.cancelled() => break,
        };
        if asked.0 != StatusCode::OK {
            assert_eq!(asked.0, StatusCode::NO_CONTENT, "{}", asked.1);
            continue;
        }
        let data = asked.1;
        let run = json!({"run_id": data["run_id"]});
        let (status, body) = client.post("/agent/runner/acknowledge", run.clone()).await;
        assert_eq!(status, StatusCode::OK, "{body}");
        let life = Life::from_data(&client, &data);
        life.report("started", json!({"container_id": instance})).await;
        ran.lock().unwrap().push((data["bot_id"].as_str().unwrap().to_owned(), instance.clone()));
        life.report("joined", json!({})).await;
        life.report("exited", json!({"exit_code": 0})).await;
        let (status, body) = client.post("/agent/runner/release", run).await;
        assert_eq!(status, StatusCode::OK, "{body}");
    }
    beating.abort();
}

async fn beat(client: Client) {
    loop {
        tokio::time::sleep(Duration::from_secs(20)).await;
        let _: (StatusCode, Value) = client.post("/agent/runner/heartbeat", json!({"run_id": null})).await;
    }
}
