//! How much one caller may have under way, so that none can take what others need: bytes that wait to be read or
//! written, open streams, places to catch up from the database, refusals a second. A caller is who asks, not a
//! connection, so that more connections are no way to get more.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::Method;
use domain::{BotId, SlotName, UserId};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::problem::Problem;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// What one caller may have under way.
const BYTES_PER_CALLER: usize = 16 * MIB;
/// What of it large requests may take up, such as pages: a caller that reads its lists slowly can still ask for a bot.
const PAGES_PER_CALLER: usize = 12 * MIB;
/// What all callers of a kind may have under way. Kinds do not share, so that a bot's heartbeat never waits for what users
/// do not read.
const BYTES_OF_USERS: usize = 256 * MIB;
const BYTES_OF_BOTS: usize = 128 * MIB;
const BYTES_OF_OPERATORS: usize = 64 * MIB;
const BYTES_OF_STRANGERS: usize = 32 * MIB;
/// How long a request waits for bytes before it is refused.
const WAIT: Duration = Duration::from_secs(2);

/// JSON in memory takes several times its text.
const BODY_WEIGHT: usize = 8;
/// The least that a request with a body counts.
const SMALLEST_BODY: usize = 8 * KIB;
/// While a page is made: its text, twice while the text grows, and the rows that it is made from.
const PAGE: usize = 4 * MIB;
/// One bot, with two documents of 64 KiB.
const ONE: usize = 256 * KIB;

/// Refusals a second and at once that a caller gets at their full cost.
const REFUSALS_PER_SECOND: f64 = 200.0;
const REFUSALS_AT_ONCE: f64 = 400.0;
/// How long the server holds a request of a caller with too many refusals. It costs a timer, and slows down a caller that
/// retries at once.
pub const HOLD: Duration = Duration::from_secs(1);

/// Callers with nothing under way are forgotten. Past twice as many, new ones share what one of their kind has.
const CALLERS: usize = 50_000;

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum QuotaOwner {
    User(UserId),
    Operator,
    Bot(BotId),
    Slot(SlotName),
    /// A runner, or a pool whose token a machine shows to become one.
    Machine(String),
    /// Nobody who is known, by the address that it comes from.
    Stranger(IpAddr),
}

impl QuotaOwner {
    /// A stranger. Who has an IPv6 address usually has all of its /64.
    pub fn stranger(address: IpAddr) -> Self {
        match address {
            IpAddr::V6(address) if address.to_ipv4_mapped().is_none() => {
                let prefix = u128::from(address) & !u128::from(u64::MAX);
                QuotaOwner::Stranger(IpAddr::V6(Ipv6Addr::from(prefix)))
            }
            address => QuotaOwner::Stranger(address.to_canonical()),
        }
    }

    fn kind(&self) -> Kind {
        match self {
            QuotaOwner::User(_) => Kind::Users,
            QuotaOwner::Operator => Kind::Operators,
            QuotaOwner::Bot(_) | QuotaOwner::Slot(_) | QuotaOwner::Machine(_) => Kind::Bots,
            QuotaOwner::Stranger(_) => Kind::Strangers,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Users,
    Bots,
    Operators,
    Strangers,
}

impl Kind {
    /// Whom callers of this kind count as when there are too many to tell apart.
    fn shared(self) -> QuotaOwner {
        match self {
            Kind::Users => QuotaOwner::User(UserId(uuid::Uuid::nil())),
            Kind::Bots => QuotaOwner::Machine(String::new()),
            Kind::Operators => QuotaOwner::Operator,
            Kind::Strangers => QuotaOwner::Stranger(IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
        }
    }
}

/// Everyone's.
#[derive(Debug)]
pub struct Quotas {
    callers: Mutex<Callers>,
    /// By [`Kind`].
    bytes: [Arc<Semaphore>; 4],
    streams: usize,
    /// Who reads old events from the database, of all callers.
    pub replays: Arc<Semaphore>,
    /// Who looks up a key that was good before; one that nobody has seen; and one of an address with many bad ones.
    pub lookups: Semaphore,
    pub new_lookups: Semaphore,
    pub doubtful_lookups: Semaphore,
}

#[derive(Debug, Default)]
struct Callers {
    known: HashMap<QuotaOwner, Arc<Quota>>,
    prune_at: usize,
}

/// One caller's.
#[derive(Debug)]
pub struct Quota {
    bytes: Arc<Semaphore>,
    pages: Arc<Semaphore>,
    all_bytes: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    most_streams: usize,
    /// One of a caller's streams catches up at a time.
    pub replay: Arc<Semaphore>,
    refusals: Mutex<Refusals>,
}

/// Bytes that are under way; they are free again when this is dropped.
#[derive(Debug)]
pub struct Reservation {
    own: OwnedSemaphorePermit,
    all: OwnedSemaphorePermit,
    /// What of it is for a page.
    page: OwnedSemaphorePermit,
}

/// A token bucket. It may owe, so that many refusals at once count as well.
#[derive(Debug)]
struct Refusals {
    left: f64,
    at: Instant,
}

impl Refusals {
    fn now(&mut self) -> f64 {
        let now = Instant::now();
        let grown = self.left + now.duration_since(self.at).as_secs_f64() * REFUSALS_PER_SECOND;
        (self.left, self.at) = (grown.min(REFUSALS_AT_ONCE), now);
        self.left
    }
}

/// Permits are counted in KiB.
fn permits(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(KIB)).unwrap_or(u32::MAX)
}

fn of_bytes(bytes: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(bytes / KIB))
}

impl Quotas {
    pub fn new(streams_per_caller: usize) -> Self {
        Self {
            callers: Mutex::default(),
            bytes: [BYTES_OF_USERS, BYTES_OF_BOTS, BYTES_OF_OPERATORS, BYTES_OF_STRANGERS].map(of_bytes),
            streams: streams_per_caller,
            replays: Arc::new(Semaphore::new(1)),
            lookups: Semaphore::new(1),
            new_lookups: Semaphore::new(1),
            doubtful_lookups: Semaphore::new(1),
        }
    }

    pub fn of(&self, caller: &QuotaOwner) -> Arc<Quota> {
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(quota) = callers.known.get(caller) {
            return quota.clone();
        }
        if callers.known.len() >= callers.prune_at.max(CALLERS / 50) {
            callers.known.retain(|_, quota| !quota.is_idle());
            callers.prune_at = callers.known.len() * 2;
        }
        let caller = if callers.known.len() < 2 * CALLERS { caller.clone() } else { caller.kind().shared() };
        let all_bytes = self.bytes[caller.kind() as usize].clone();
        callers.known.entry(caller).or_insert_with(|| Arc::new(Quota::new(all_bytes, self.streams))).clone()
    }
}

impl Quota {
    fn new(all_bytes: Arc<Semaphore>, most_streams: usize) -> Self {
        Self {
            bytes: of_bytes(BYTES_PER_CALLER),
            pages: of_bytes(PAGES_PER_CALLER),
            all_bytes,
            streams: Arc::new(Semaphore::new(most_streams)),
            most_streams,
            replay: Arc::new(Semaphore::new(1)),
            refusals: Mutex::new(Refusals { left: REFUSALS_AT_ONCE, at: Instant::now() }),
        }
    }

    /// Whether forgetting it would make no difference.
    fn is_idle(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) == 1
            && self.bytes.available_permits() == BYTES_PER_CALLER / KIB
            && self.streams.available_permits() == self.most_streams
            && self.refusals.lock().unwrap_or_else(PoisonError::into_inner).now() >= REFUSALS_AT_ONCE
    }

    /// Sets bytes aside. A request waits a moment for those before it, in the order of arrival.
    pub async fn reserve(&self, bytes: usize) -> Result<Reservation, Problem> {
        let of_page = if bytes >= PAGE { permits(bytes.min(PAGES_PER_CALLER)) } else { 0 };
        let permits = permits(bytes.min(BYTES_PER_CALLER));
        let acquire = async {
            let page = self.pages.clone().acquire_many_owned(of_page).await.ok()?;
            // Its own first: of each caller no more waits for everyone's than it may have.
            let own = self.bytes.clone().acquire_many_owned(permits).await.ok()?;
            let all = self.all_bytes.clone().acquire_many_owned(permits).await.ok()?;
            Some(Reservation { own, all, page })
        };
        let reserved = tokio::time::timeout(WAIT, acquire).await.ok().flatten();
        reserved.ok_or_else(|| {
            metrics::counter!("greenroom_http_overloaded_total", "what" => "bytes").increment(1);
            Problem::overloaded("too many bytes are in transfer; read the pending responses, then try again")
        })
    }

    /// Opens one more stream.
    pub fn open_stream(&self) -> Result<OwnedSemaphorePermit, Problem> {
        self.streams.clone().try_acquire_owned().map_err(|_| {
            metrics::counter!("greenroom_http_overloaded_total", "what" => "streams").increment(1);
            Problem::overloaded(format!("you have {} open streams, which is the limit", self.most_streams))
        })
    }

    /// Counts a refusal.
    pub fn refused(&self) {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        refusals.left = (refusals.now() - 1.0).max(-REFUSALS_AT_ONCE);
    }

    /// Whether this caller was refused more often than it may be at full cost.
    pub fn has_too_many_refusals(&self) -> bool {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner).now() < 1.0
    }

    /// Slows down a caller that is refused again and again, before anything else is done for it.
    pub async fn slow_down(&self, stopping: &CancellationToken) -> Result<(), Problem> {
        if !self.has_too_many_refusals() {
            return Ok(());
        }
        hold(stopping).await;
        if !self.has_too_many_refusals() {
            return Ok(());
        }
        metrics::counter!("greenroom_http_overloaded_total", "what" => "refusals").increment(1);
        Err(Problem::overloaded("too many of your requests were refused; their responses have the reasons"))
    }
}

/// Holds an answer that costs nothing back, so that who asks in a loop goes slower.
pub async fn hold(stopping: &CancellationToken) {
    tokio::select! {
        () = tokio::time::sleep(HOLD) => {}
        () = stopping.cancelled() => {}
    }
}

impl Reservation {
    /// Gives back what is not needed.
    pub fn shrink_to(&mut self, bytes: usize) {
        let needed = permits(bytes) as usize;
        for permit in [&mut self.own, &mut self.all, &mut self.page] {
            drop(permit.split(permit.num_permits().saturating_sub(needed)));
        }
    }
}

/// What a request will need at most, as far as its head tells. Long polls and streams need nothing while they wait.
pub fn needed(method: &Method, route: &str, query: Option<&str>, body: Option<usize>) -> usize {
    const PAGED: [&str; 10] = [
        "/bots",
        "/bots/active",
        "/bots/status",
        "/meetings",
        "/admin/users",
        "/admin/bots",
        "/admin/audit",
        "/admin/slots",
        "/admin/queue",
        "/admin/deployments",
    ];
    let body = body.map_or(0, |bytes| (bytes * BODY_WEIGHT).max(SMALLEST_BODY));
    let is_read = *method == Method::GET || *method == Method::HEAD;
    let answer = match route {
        "/healthz" | "/readyz" | "/events" | "/admin/live" => 0,
        // It waits first, as one of the caller's streams.
        "/bots/{id}" if is_read && query.is_some_and(|query| query.contains("wait_for=")) => 0,
        route if is_read && PAGED.contains(&route) => PAGE,
        route
            if is_read && ["/events", "/transcript", "/logs", "/screenshot"].iter().any(|end| route.ends_with(end)) =>
        {
            PAGE
        }
        "/" | "/metrics" | "/openapi.json" => ONE,
        route if route.starts_with("/docs") => ONE,
        route if body == 0 && (route.starts_with("/bots") || route.starts_with("/admin")) => ONE,
        _ => 0,
    };
    body + answer
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn user(number: u128) -> QuotaOwner {
        QuotaOwner::User(UserId(uuid::Uuid::from_u128(number)))
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_of_one_caller_are_bounded_and_another_does_not_wait_for_them() {
        let quotas = Quotas::new(1);
        let (one, other) = (quotas.of(&user(1)), quotas.of(&user(2)));
        let mut held = one.reserve(BYTES_PER_CALLER).await.unwrap();
        assert!(one.reserve(1).await.is_err());
        other.reserve(1).await.unwrap();
        held.shrink_to(BYTES_PER_CALLER - 10 * KIB);
        one.reserve(10 * KIB).await.unwrap();
        drop(held);
        one.reserve(BYTES_PER_CALLER).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_does_not_read_its_pages_can_still_ask_for_a_bot() {
        let quota = Quotas::new(1).of(&user(1));
        let mut held = Vec::new();
        while let Ok(page) = quota.reserve(PAGE).await {
            held.push(page);
        }
        assert_eq!(held.len(), PAGES_PER_CALLER / PAGE);
        quota.reserve(SMALLEST_BODY).await.unwrap();
        for page in &mut held {
            page.shrink_to(MIB);
        }
        quota.reserve(PAGE).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_of_all_users_are_bounded_and_bots_do_not_wait_for_them() {
        let quotas = Quotas::new(1);
        let mut held = Vec::new();
        for number in 0..(BYTES_OF_USERS / BYTES_PER_CALLER) as u128 {
            held.push(quotas.of(&user(number)).reserve(BYTES_PER_CALLER).await.unwrap());
        }
        assert!(quotas.of(&user(1_000)).reserve(1).await.is_err());
        quotas.of(&QuotaOwner::Bot(BotId(uuid::Uuid::nil()))).reserve(1).await.unwrap();
        held.pop();
        quotas.of(&user(1_000)).reserve(1).await.unwrap();
    }

    #[test]
    fn only_a_caller_that_is_refused_too_often_is_limited() {
        let quotas = Quotas::new(1);
        let (one, other) = (quotas.of(&user(1)), quotas.of(&user(2)));
        for _ in 0..2_000 {
            one.refused();
        }
        assert!(one.has_too_many_refusals() && !other.has_too_many_refusals());
    }

    #[test]
    fn callers_with_nothing_under_way_are_forgotten_and_others_are_not() {
        let quotas = Quotas::new(1);
        let stream = quotas.of(&user(0)).open_stream().unwrap();
        for number in 1..10_000 {
            quotas.of(&user(number));
        }
        let known = || quotas.callers.lock().unwrap().known.len();
        assert!(known() < 5_000, "{}", known());
        assert!(quotas.of(&user(0)).open_stream().is_err());
        drop(stream);
        assert!(quotas.of(&user(0)).open_stream().is_ok());
    }

    #[test]
    fn an_ipv6_network_counts_as_one_anonymous_caller() {
        let of = |address: &str| QuotaOwner::stranger(address.parse().unwrap());
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::9"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
    }
}
