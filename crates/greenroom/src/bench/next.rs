//! Measures the time from a bot's end to the assignment of the next bot in the queue. It begins with the call that
//! reports the end. It compares this with a poll every second that finds the freed slot and assigns it. The poll only
//! reads memory, so it is measured at its best.

use std::time::{Duration, Instant};

use domain::{BotId, ConnectionId};
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use super::Done;
use super::client::{Bot, Client, HttpResponse};
use super::database::Database;
use super::figures::{milliseconds, percentile};
use super::server::{PoolSpec, ServerProcess, ServerSpec};
use crate::lifecycle::tokens::{Claim, Tokens};

const POLL: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub struct Options {
    /// A PostgreSQL database, on whose server another one may be created. SQLite if absent.
    pub database: Option<String>,
    pub ends: usize,
}

/// Checks once per interval whether a slot is free, and then assigns it to the next bot.
struct Poll {
    freed: mpsc::UnboundedSender<oneshot::Sender<()>>,
}

impl Poll {
    fn begin() -> Self {
        let (freed, mut slots) = mpsc::unbounded_channel::<oneshot::Sender<()>>();
        tokio::spawn(async move {
            let mut tick = tokio::time::interval(POLL);
            while !slots.is_closed() {
                tick.tick().await;
                while let Ok(next) = slots.try_recv() {
                    let _ = next.send(());
                }
            }
        });
        Self { freed }
    }

    /// Frees a slot and returns how long the next bot waited for it.
    async fn next(&self) -> Done<Duration> {
        let (next, assigned) = oneshot::channel();
        let ended = Instant::now();
        self.freed.send(next)?;
        assigned.await?;
        Ok(ended.elapsed())
    }
}

pub async fn run(options: &Options) -> Done {
    println!(
        "ms from the end of a bot until the next in the queue has its slot; {} ends each, alternating",
        options.ends
    );
    println!("{:>22} {:>10} {:>10}", "", "p50", "p99");
    for is_hot in [true, false] {
        let database = Database::create(options.database.as_deref()).await?;
        let measured = on(&database, is_hot, options).await;
        database.remove().await?;
        measured?;
    }
    Ok(())
}

async fn on(database: &Database, is_hot: bool, options: &Options) -> Done {
    let pool = PoolSpec { is_hot, recycle_after: u32::from(!is_hot), ..PoolSpec::hot(1) };
    let server = ServerProcess::start(&ServerSpec::new(database, vec![pool])).await?;
    let tokens = Tokens::new(&database.signing_secret().await?);
    let key = server.create_users(1, 5).await?.remove(0);
    let mut client = Client::connect(server.address).await?;
    let mut has = ask(&mut client, &key, 0).await?;
    let (mut ours, mut polled) = (Vec::new(), Vec::new());
    let poll = Poll::begin();
    for round in 1..=options.ends {
        let next = ask(&mut client, &key, round).await?;
        if next.queue_position != Some(1) {
            return Err("the next bot is not the first in the queue".into());
        }
        until_started(database, &has).await?;
        let connection = has.connection_id.ok_or("the slot has no connection")?;
        let claim = Claim { bot: BotId(has.id), connection: ConnectionId(connection) };
        let token = tokens.make(claim);
        let body = format!("{{\"connection_id\": \"{connection}\", \"exit_code\": 0, \"reason\": \"measured\"}}");
        let asked = Instant::now();
        let _: serde_json::Value = client.send("POST /callback/exited", &token, None, &body, 200).await?;
        has = until_assigned(&mut client, &key, next.id).await?;
        ours.push(milliseconds(asked.elapsed()));
        // The end happens at a time that is independent of the poll.
        tokio::time::sleep(POLL.mul_f64((round as f64 * 0.618_033_988_75).fract())).await;
        polled.push(milliseconds(poll.next().await?));
    }
    let name = if is_hot { "hot" } else { "stopped" };
    for (name, times) in [(name, &ours), ("a poll of 1 s", &polled)] {
        println!("{name:>22} {:>10.2} {:>10.2}", percentile(times, 0.5), percentile(times, 0.99));
    }
    println!("{:>22} {:>10.1}", "ratio", percentile(&polled, 0.5) / percentile(&ours, 0.5));
    server.stop().await
}

async fn ask(client: &mut Client, key: &str, number: usize) -> Done<Bot> {
    let letters = [number / 676 % 26, number / 26 % 26, number % 26].map(|n| char::from(b'a' + n as u8));
    let body = format!("{{\"meeting_url\": \"https://meet.google.com/abc-defg-{}\"}}", String::from_iter(letters));
    Ok(client.send::<HttpResponse>("POST /bots", key, None, &body, 201).await?.bot)
}

/// A bot that ends during the start of its slot would measure something else.
async fn until_started(database: &Database, bot: &Bot) -> Done {
    let deadline = Instant::now() + TIMEOUT;
    let started = format!(
        "SELECT COUNT(*) FROM slots
          WHERE bot_id = '{}' AND status = 'busy' AND name NOT IN (SELECT slot FROM deployments)",
        bot.id
    );
    while database.number(started.as_str()).await? == 0 {
        if Instant::now() > deadline {
            return Err("the slot was not started in time".into());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

async fn until_assigned(client: &mut Client, key: &str, bot: Uuid) -> Done<Bot> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let HttpResponse { bot } = client.send(&format!("GET /bots/{bot}"), key, None, "", 200).await?;
        if bot.slot.is_some() {
            return Ok(bot);
        }
        if Instant::now() > deadline {
            return Err("the next bot got no slot in time".into());
        }
    }
}
