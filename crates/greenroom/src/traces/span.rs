//! Spans, and their ids. The ids follow from the bot and the step, so that a span that is sent twice, by two replicas or
//! after a lost answer, is the same span.

use domain::BotId;
use jiff::Timestamp;
use sha2::{Digest, Sha256};

/// A span's id, which is never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpanId(pub [u8; 8]);

impl SpanId {
    /// The span of a whole bot. The last half of a bot's id is never zero, and an agent can make it too.
    pub fn of_bot(bot: BotId) -> Self {
        let mut id = [0; 8];
        id.copy_from_slice(&bot.0.as_bytes()[8..]);
        Self(id)
    }

    /// The span of one step of a bot. `step` names it among all steps of the bot.
    pub fn of_step(bot: BotId, step: &str) -> Self {
        let hash = Sha256::new().chain_update(bot.0.as_bytes()).chain_update(step).finalize();
        let mut id = [0; 8];
        id.copy_from_slice(&hash[..8]);
        id[7] |= 1;
        Self(id)
    }
}

/// A finished step of a bot. Its attributes contain no tokens, meeting links, or words of users and bots.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    pub bot: BotId,
    pub id: SpanId,
    /// `None` for the span of the whole bot.
    pub parent: Option<SpanId>,
    pub name: &'static str,
    pub start: Timestamp,
    pub end: Timestamp,
    pub attributes: Vec<(&'static str, String)>,
    /// What went wrong, in a word.
    pub error: Option<String>,
    /// The trace of the caller.
    pub link: Option<TraceParent>,
    /// Whether it is the answer to a request.
    pub is_server: bool,
}

impl Span {
    /// A step within the span of the bot.
    pub fn step(bot: BotId, name: &'static str, start: Timestamp, end: Timestamp) -> Self {
        let id = SpanId::of_step(bot, &format!("{name} {}", start.as_microsecond()));
        let (attributes, error, link, is_server) = Default::default();
        Self {
            bot,
            id,
            parent: Some(SpanId::of_bot(bot)),
            name,
            start,
            end: end.max(start),
            attributes,
            error,
            link,
            is_server,
        }
    }

    /// The span of the whole bot.
    pub fn of_bot(bot: BotId, start: Timestamp, end: Timestamp) -> Self {
        Self { id: SpanId::of_bot(bot), parent: None, ..Self::step(bot, "bot", start, end) }
    }

    pub fn within(self, parent: SpanId) -> Self {
        Self { parent: Some(parent), ..self }
    }

    pub fn with(mut self, key: &'static str, value: impl Into<String>) -> Self {
        self.attributes.push((key, value.into()));
        self
    }

    pub fn failed(self, error: Option<&str>) -> Self {
        Self { error: error.map(str::to_owned), ..self }
    }
}

/// The W3C header `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    pub trace: [u8; 16],
    pub span: [u8; 8],
    pub flags: u8,
}

impl TraceParent {
    /// The parent of what an agent and a bot's own program do.
    pub fn of_bot(bot: BotId) -> Self {
        Self { trace: *bot.0.as_bytes(), span: SpanId::of_bot(bot).0, flags: 1 }
    }

    /// `None` for anything that is not a valid header. Later versions may have more fields, which are ignored.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let is_valid = version.len() == 2 && version != "ff" && (version != "00" || parts.next().is_none());
        hex::<1>(version)?;
        let parent = Self { trace: hex(trace)?, span: hex(span)?, flags: hex::<1>(flags)?[0] };
        (is_valid && parent.trace != [0; 16] && parent.span != [0; 8]).then_some(parent)
    }
}

impl std::fmt::Display for TraceParent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("00-")?;
        self.trace.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str("-")?;
        self.span.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, "-{:02x}", self.flags)
    }
}

fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let is_hex = text.len() == 2 * N && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let mut bytes = [0; N];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2).filter(|_| is_hex)?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_is_read_as_it_is_written_and_nothing_else_is() {
        let bot = BotId(uuid::Uuid::now_v7());
        let parent = TraceParent::of_bot(bot);
        assert_eq!(TraceParent::parse(&parent.to_string()), Some(parent));
        assert_eq!(parent.trace, *bot.0.as_bytes());
        let later = "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00-more";
        assert!(TraceParent::parse(later).is_some());
        for wrong in [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-ééééééééééééééé-b7ad6b7169203331-01",
        ] {
            assert_eq!(TraceParent::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_step_always_has_the_same_id_and_another_step_another() {
        let bot = BotId(uuid::Uuid::now_v7());
        let (at, later) = (Timestamp::from_second(5).unwrap(), Timestamp::from_second(6).unwrap());
        let step = |name, start| Span::step(bot, name, start, later).id;
        assert_eq!(step("queued", at), step("queued", at));
        assert_ne!(step("queued", at), step("active", at));
        assert_ne!(step("queued", at), step("queued", later));
        assert_ne!(step("queued", at), SpanId::of_bot(bot));
    }
}
