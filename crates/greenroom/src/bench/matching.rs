//! Finding one that fits where one in a hundred does. The store finds it by one statement, in the transaction that also
//! admits and places the bot: measured is the whole of that, for any slot, for one in a hundred, and for one in a hundred of
//! many more. Beside it, in the same run, the way over SQS and DynamoDB: messages are received, deleted, looked at and sent
//! back until one fits, and that is claimed by a conditional update.

use std::time::{Duration, Instant};

use aws::{Class, Holder, Pace, RunnerPool, Settings};
use domain::{Attributes, Meeting, Platform, Requirements, UsageClass};
use serde_json::Map;
use uuid::Uuid;

use super::Done;
use super::figures::{median, milliseconds, percentile};
use super::house::{Database, House, Nothing, providers};
use crate::admission::Wish;
use crate::admission::keys::ApiKey;
use crate::config::pool::{PoolConfig, Standby};
use crate::config::provider::{ProcessConfig, ProviderConfig};

const POOL: &str = "bench";
const CLASS: &str = "large";
/// One in so many fits.
const KINDS: i64 = 100;

#[derive(Clone, Debug)]
pub struct Options {
    /// A database of a PostgreSQL on which another may be made; SQLite without.
    pub database: Option<String>,
    /// Where SQS and DynamoDB are, if not at AWS; nothing is measured there without a region.
    pub endpoint: Option<String>,
    pub region: Option<String>,
    /// How many slots there are in the store.
    pub slots: Vec<i64>,
    /// How many runners there are in the queue.
    pub runners: i64,
    pub picks: usize,
}

pub async fn run(options: &Options) -> Done {
    println!("milliseconds to find and claim one that fits");
    println!("{:<42} {:>8} {:>9} {:>9}", "", "of", "median", "p99");
    let mut ours = f64::NAN;
    for slots in &options.slots {
        let database = Database::make(options.database.as_deref()).await?;
        let measured = in_store(&database, *slots, options.picks).await;
        database.remove().await?;
        let (any, one) = measured?;
        print("in the store, where any fits", *slots, &any);
        print("in the store, where one in a hundred fits", *slots, &one);
        ours = median(&one);
    }
    let Some(region) = &options.region else {
        println!("over SQS and DynamoDB: not measured, as no --region is named");
        return Ok(());
    };
    let (times, calls) = over_queue(options, region).await?;
    print("over SQS and DynamoDB, one in a hundred", options.runners, &times);
    println!("{:.0} messages were looked at for each; {:.1} times the store's", calls, median(&times) / ours);
    Ok(())
}

fn print(what: &str, of: i64, times: &[f64]) {
    println!("{what:<42} {of:>8} {:>9.2} {:>9.2}", median(times), percentile(times, 0.99));
}

/// What the slots of one kind have: of each class there is one in a hundred.
fn kind(number: i64) -> Attributes {
    Attributes {
        resource_class: Some(format!("class-{number}")),
        instance_type: Some(format!("c6i.class-{number}")),
        cpu: 2,
        mem: 4096,
        ..Attributes::default()
    }
}

async fn in_store(database: &Database, slots: i64, picks: usize) -> Done<(Vec<f64>, Vec<f64>)> {
    let pool = PoolConfig {
        name: POOL.to_owned(),
        platform: Platform::GoogleMeet,
        provider: ProviderConfig::Process(ProcessConfig::default()),
        max_slots: u32::try_from(slots)?,
        min_idle: 0,
        standby: Standby::Running,
        recycle_after: 0,
        attributes: kind(0),
        expire_after: None,
    };
    let house = House::start(database, vec![pool], Some(providers(POOL, Nothing))).await?;
    house.furnish(POOL, slots, &(0..KINDS).map(kind).collect::<Vec<_>>()).await?;
    let (_, key) = house.user(i64::MAX).await?;
    let key = ApiKey::parse(&key).ok_or("the key is none")?;
    let wanted = Requirements { resource_class: kind(KINDS / 2).resource_class, ..Requirements::default() };
    // No more than there are, of any and of those that fit.
    let picks = picks.min(usize::try_from(slots / KINDS)?.saturating_sub(1)).max(1);
    let (mut any, mut one) = (Vec::new(), Vec::new());
    for number in 0..picks {
        any.push(reserve(&house, &key, 2 * number, None).await?);
        one.push(reserve(&house, &key, 2 * number + 1, Some(wanted.clone())).await?);
    }
    house.stop().await?;
    Ok((any, one))
}

/// Asks for a bot that gets a slot at once, and says how long that took.
async fn reserve(house: &House, key: &ApiKey, number: usize, wants: Option<Requirements>) -> Done<f64> {
    let letters: String = (0..10).map(|at| char::from(b'a' + (number / 26_usize.pow(at) % 26) as u8)).collect();
    let id = format!("{}-{}-{}", &letters[..3], &letters[3..7], &letters[7..]);
    let wish = Wish {
        meeting: Meeting::from_native_id(Platform::GoogleMeet, &id)?,
        bot_display_name: None,
        priority: 100,
        queue_timeout_ms: 300_000,
        requirements: wants.as_ref().map(|_| Map::new()),
        wants: wants.clone(),
        config: Map::new(),
        metadata: Map::new(),
        idempotency: None,
    };
    let begun = Instant::now();
    let reserved = house.app.placement.reserve(key.clone(), wish).await?;
    let took = milliseconds(begun.elapsed());
    let name = reserved.bot.slot.ok_or("a bot got no slot")?;
    let slot = house.app.store.slot(&name).await?.ok_or("a slot is gone")?;
    if wants.is_some_and(|wants| !wants.fits(&slot.attributes)) {
        return Err(format!("{name} does not fit").into());
    }
    Ok(took)
}

/// What a runner has: one in a hundred is of the type that is wanted.
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

/// The times, and how many messages were looked at for each on the way.
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
        // So long that nothing ends while it is measured, and as many rounds as it takes.
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
    let before = pool.looked_at();
    for number in 0..picks {
        let holder = Holder { slot: format!("bench-{number}"), connection: None };
        let begun = Instant::now();
        let runner = pool.claim_unchecked(Some(&wanted), &holder).await?.ok_or("no runner was found")?;
        times.push(milliseconds(begun.elapsed()));
        if !wanted.fits(&runner.attributes) {
            return Err(format!("{} does not fit", runner.instance).into());
        }
    }
    let looked_at = (pool.looked_at() - before) as f64 / picks as f64;
    Ok((times, looked_at))
}
