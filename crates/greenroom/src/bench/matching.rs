//! Measures how fast a slot that fits is found, where one in a hundred fits. The store finds it in the transaction that
//! also admits and places the bot. So the whole of `POST /bots` is measured: for any slot, for one in a hundred, and
//! for one in a hundred of many more. It is compared, in the same run, with SQS and DynamoDB. There messages are
//! received, deleted, checked and sent back until one fits, and a conditional update claims it.

use std::time::{Duration, Instant};

use aws::{Class, Holder, Pace, RunnerPool, Settings};
use domain::{Attributes, Requirements, UsageClass};
use serde_json::json;
use uuid::Uuid;

use super::Done;
use super::client::{Client, HttpResponse};
use super::database::Database;
use super::figures::{median, milliseconds, percentile};
use super::load::shared::meeting;
use super::server::{AttributesSpec, PoolSpec, ServerProcess, ServerSpec, filled_database};

const CLASS: &str = "large";
/// One slot in this number fits.
const KINDS: i64 = 100;

#[derive(Clone, Debug)]
pub struct Options {
    /// A PostgreSQL database, on whose server another one may be created. SQLite if absent.
    pub database: Option<String>,
    /// The address of SQS and DynamoDB, if they are not at AWS. Without a region they are not measured.
    pub endpoint: Option<String>,
    pub region: Option<String>,
    /// The numbers of slots in the store.
    pub slots: Vec<i64>,
    /// The number of runners in the queue.
    pub runners: i64,
    pub picks: usize,
}

pub async fn run(options: &Options) -> Done {
    println!("milliseconds to find and claim a slot or runner that fits");
    println!("{:<42} {:>8} {:>9} {:>9}", "", "of", "median", "p99");
    let mut ours = f64::NAN;
    for slots in &options.slots {
        let pool = PoolSpec { attributes: attributes(0), ..PoolSpec::hot(u32::try_from(*slots)?) };
        let sets: Vec<String> = (0..KINDS).map(|number| stored(&attributes(number))).collect();
        let database = filled_database(options.database.as_deref(), &pool, &sets).await?;
        let measured = in_store(&database, &pool, options.picks).await;
        database.remove().await?;
        let (any, one) = measured?;
        print("database, every slot fits", *slots, &any);
        print("database, one in a hundred fits", *slots, &one);
        ours = median(&one);
    }
    let Some(region) = &options.region else {
        println!("SQS and DynamoDB: not measured, because --region is not set");
        return Ok(());
    };
    let (times, calls) = over_queue(options, region).await?;
    print("SQS and DynamoDB, one in a hundred fits", options.runners, &times);
    println!("messages read for each runner: {:.0}; ratio to the database: {:.1}", calls, median(&times) / ours);
    Ok(())
}

fn print(what: &str, of: i64, times: &[f64]) {
    println!("{what:<42} {of:>8} {:>9.2} {:>9.2}", median(times), percentile(times, 0.99));
}

/// The attributes of the slots of one kind. One in a hundred slots has each class.
fn attributes(number: i64) -> AttributesSpec {
    AttributesSpec {
        resource_class: Some(class_name(number)),
        instance_type: Some(format!("c6i.class-{number}")),
        cpu: 2,
        mem: 4096,
    }
}

fn class_name(number: i64) -> String {
    format!("class-{number}")
}

/// As the schema stores them.
fn stored(attributes: &AttributesSpec) -> String {
    let AttributesSpec { resource_class, instance_type, cpu, mem } = attributes.clone();
    Attributes { resource_class, instance_type, cpu, mem, ..Attributes::default() }.to_string()
}

async fn in_store(database: &Database, pool: &PoolSpec, picks: usize) -> Done<(Vec<f64>, Vec<f64>)> {
    let server = ServerProcess::start(&ServerSpec::new(database, vec![pool.clone()])).await?;
    let key = server.create_users(1, 1_000_000).await?.remove(0);
    let mut client = Client::connect(server.address).await?;
    // No more than there are, both of all slots and of those that fit.
    let picks = picks.min(usize::try_from(i64::from(pool.slots) / KINDS)?.saturating_sub(1)).max(1);
    let (mut any, mut one) = (Vec::new(), Vec::new());
    for number in 0..picks as u64 {
        any.push(place(&mut client, database, &key, 2 * number, None).await?);
        one.push(place(&mut client, database, &key, 2 * number + 1, Some(KINDS / 2)).await?);
    }
    server.stop().await?;
    Ok((any, one))
}

/// Requests a bot that gets a slot at once, and returns how long that took.
async fn place(client: &mut Client, database: &Database, key: &str, number: u64, class: Option<i64>) -> Done<f64> {
    let mut body = json!({"meeting_url": format!("https://meet.google.com/{}", meeting(number))});
    if let Some(class) = class {
        body["requirements"] = json!({"resource_class": class_name(class)});
    }
    let body = body.to_string();
    let begun = Instant::now();
    let HttpResponse { bot } = client.send("POST /bots", key, None, &body, 201).await?;
    let took = milliseconds(begun.elapsed());
    let name = bot.slot.ok_or("a bot got no slot")?;
    let found = database.texts(format!("SELECT attributes FROM slots WHERE name = '{name}'")).await?;
    if class.is_some_and(|class| found != [stored(&attributes(class))]) {
        return Err(format!("{name} does not fit").into());
    }
    Ok(took)
}

/// The attributes of a runner. One in a hundred has the required type.
fn runner(number: i64) -> Attributes {
    let name = if number % KINDS == KINDS / 2 { "c6i.large" } else { "m6i.large" };
    Attributes {
        resource_class: Some(CLASS.to_owned()),
        usage_class: UsageClass::OnDemand,
        instance_type: Some(name.to_owned()),
        cpu: 2,
        mem: 4096,
    }
}

/// The times, and the average number of messages that were checked for each.
async fn over_queue(options: &Options, region: &str) -> Done<(Vec<f64>, f64)> {
    let name = format!("greenroom-bench-{}", Uuid::new_v4().simple());
    let class = Class {
        name: CLASS.to_owned(),
        cpu: 2,
        mem: 4096,
        instance_types: vec!["c6i.large".to_owned(), "m6i.large".to_owned()],
        max: u32::try_from(options.runners)?,
        spot_max: 0,
        min_idle: 0,
    };
    let settings = Settings {
        region: region.to_owned(),
        endpoint: options.endpoint.clone(),
        queue_prefix: format!("{name}-"),
        table: name.clone(),
        launch_template: None,
        subnets: Vec::new(),
        zones: Vec::new(),
        classes: vec![class],
        // Long enough that nothing expires during the measurement, with an unlimited number of rounds.
        pace: Pace { announcement: Duration::from_hours(1), rounds: u32::MAX, ..Pace::default() },
        installation: name,
    };
    aws::init(&settings).await?;
    let pool = RunnerPool::connect(settings.clone()).await;
    let measured = picked(&pool, options).await;
    aws::remove(&settings).await?;
    measured
}

async fn picked(pool: &RunnerPool, options: &Options) -> Done<(Vec<f64>, f64)> {
    let runners: Vec<_> = (0..options.runners).map(|number| (format!("i-{number:08x}"), runner(number))).collect();
    pool.fill(&runners).await?;
    let types = "c6i.*".to_owned().try_into()?;
    let wanted = Requirements { allowed_instance_types: Some(types), ..Requirements::default() };
    let picks = options.picks.min(usize::try_from(options.runners / KINDS)?).max(1);
    let mut times = Vec::new();
    let before = pool.examined();
    for number in 0..picks {
        let holder = Holder { slot: format!("bench-{number}"), connection: None };
        let begun = Instant::now();
        let runner = pool.claim_unchecked(Some(&wanted), &holder).await?.ok_or("no runner was found")?;
        times.push(milliseconds(begun.elapsed()));
        if !wanted.fits(&runner.attributes) {
            return Err(format!("{} does not fit", runner.instance).into());
        }
    }
    let examined = (pool.examined() - before) as f64 / picks as f64;
    Ok((times, examined))
}
