//! Users who request bots as fast as their limits allow, and stop some of them. A user who gets no answer repeats the
//! request with the same key until there is one.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::{Duration, Instant};

use greenroom::random::Random;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use super::dice;
use crate::support::{Client, meet_link};

/// Some replica must have answered within this time.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longer than a running replica needs.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// The number of concurrent requests of each user.
const ASKERS: usize = 3;
const AFTER_REFUSAL: Duration = Duration::from_millis(100);
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// How a bot ends if nothing disturbs it.
#[derive(Debug)]
pub struct Wanted {
    pub code: u8,
    /// Its user stops it.
    pub leaves: bool,
}

/// The result of the load.
#[derive(Debug, Default)]
pub struct Done {
    /// The bots that were acknowledged.
    pub acknowledged: HashMap<String, Wanted>,
    pub asked: usize,
    refused: usize,
    stopped: usize,
    /// The errors that came instead of an answer, and how often.
    unanswered: BTreeMap<String, usize>,
    /// Answers that no user should get.
    pub strange: Vec<String>,
}

impl Done {
    pub fn add(&mut self, other: Self) {
        self.acknowledged.extend(other.acknowledged);
        self.asked += other.asked;
        self.refused += other.refused;
        self.stopped += other.stopped;
        for (why, count) in other.unanswered {
            *self.unanswered.entry(why).or_default() += count;
        }
        self.strange.extend(other.strange);
    }
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { acknowledged, asked, refused, stopped, unanswered, .. } = self;
        let acknowledged = acknowledged.len();
        writeln!(
            f,
            "  bots: {asked} asked for, {acknowledged} acknowledged, {refused} over a limit, {stopped} stopped"
        )?;
        write!(f, "  asked again after: {unanswered:?}")
    }
}

struct Asker {
    client: Client,
    number: usize,
    random: Random,
    done: Done,
}

/// All users send requests until `over` is set, and then repeat open requests until each is answered.
pub fn begin(users: &[Client], seed: u64, over: &CancellationToken) -> Vec<JoinHandle<Done>> {
    let all = users.iter().flat_map(|user| (0..ASKERS).map(move |number| (user, number)));
    let requests = all.zip(1..).map(|((user, number), offset)| {
        let random = Random::seeded(seed.wrapping_add(offset));
        ask_until(Asker { client: user.clone(), number, random, done: Done::default() }, over.clone())
    });
    requests.map(tokio::spawn).collect()
}

async fn ask_until(mut asker: Asker, over: CancellationToken) -> Done {
    let mut leaving = JoinSet::new();
    for count in 0.. {
        if over.is_cancelled() {
            break;
        }
        if let Some(bot) = asker.ask(count).await
            && asker.done.acknowledged[&bot].leaves
        {
            let after = Duration::from_millis(dice(&asker.random, 1_500));
            leaving.spawn(stop(asker.client.clone(), bot, after));
        }
    }
    for other in leaving.join_all().await {
        asker.done.add(other);
    }
    asker.done
}

impl Asker {
    /// Requests a bot, and returns its id.
    async fn ask(&mut self, count: usize) -> Option<String> {
        let stays = dice(&self.random, 4) == 0;
        let leaves = stays || dice(&self.random, 4) == 0;
        let life = match stays {
            true => "stays".to_owned(),
            false => format!("0.{}", dice(&self.random, 10)),
        };
        let code = if stays { 0 } else { [0, 0, 0, 7][dice(&self.random, 4) as usize] };
        // Concurrent requests of the same user are for different meetings.
        let meeting = count * ASKERS + self.number;
        let bot_request = json!({
            "meeting_url": meet_link(meeting), "priority": 50 * dice(&self.random, 3),
            "queue_timeout_ms": 2_000 + dice(&self.random, 28_000), "config": {"life": life, "code": code.to_string()},
        });
        self.done.asked += 1;
        let call = || {
            self.client.request(Method::POST, "/bots").header("Idempotency-Key", meeting.to_string()).json(&bot_request)
        };
        match answer(call, &mut self.done).await {
            (StatusCode::CREATED | StatusCode::OK, answer) => {
                let bot = answer["bot"]["id"].as_str().unwrap().to_owned();
                self.done.acknowledged.insert(bot.clone(), Wanted { code, leaves });
                Some(bot)
            }
            (StatusCode::TOO_MANY_REQUESTS, _) => {
                self.done.refused += 1;
                tokio::time::sleep(AFTER_REFUSAL).await;
                None
            }
            (status, answer) => {
                self.done.strange.push(format!("{bot_request} is answered {status}: {answer}"));
                None
            }
        }
    }
}

/// Stops a bot some time after its start.
async fn stop(client: Client, bot: String, after: Duration) -> Done {
    tokio::time::sleep(after).await;
    let mut done = Done { stopped: 1, ..Done::default() };
    let (status, answer) = answer(|| client.request(Method::DELETE, &format!("/bots/{bot}")), &mut done).await;
    if !status.is_success() {
        done.strange.push(format!("DELETE is answered {status}: {answer}"));
    }
    done
}

/// Repeats a request until it is decided.
async fn answer(call: impl Fn() -> reqwest::RequestBuilder, done: &mut Done) -> (StatusCode, Value) {
    let begun = Instant::now();
    loop {
        let why = match try_once(call()).await {
            Ok((StatusCode::SERVICE_UNAVAILABLE, _)) => "503".to_owned(),
            Ok(decided) => return decided,
            Err(error) if error.is_timeout() => "no answer in time".to_owned(),
            Err(error) if error.is_connect() => "no connection".to_owned(),
            Err(_) => "a connection that broke".to_owned(),
        };
        *done.unanswered.entry(why).or_default() += 1;
        assert!(begun.elapsed() < PATIENCE, "no replica answers");
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}

async fn try_once(call: reqwest::RequestBuilder) -> Result<(StatusCode, Value), reqwest::Error> {
    let response = call.timeout(ANSWER_WITHIN).send().await?;
    let status = response.status();
    let text = response.text().await?;
    Ok((status, serde_json::from_str(&text).unwrap_or(Value::String(text))))
}
