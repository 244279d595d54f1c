//! A message to all readers: a server-sent event, written once and compressed once, however many readers get it.

use std::io::Write;
use std::sync::{Arc, OnceLock};

use axum::body::Bytes;
use flate2::write::DeflateEncoder;
use flate2::{Compression, Crc};

/// How long a client waits before it comes back.
const RETRY_MS: u32 = 1_000;

/// A message to all readers.
#[derive(Clone, Debug, PartialEq)]
pub enum LiveMessage {
    Snapshot(Arc<EventText>),
    Change(Arc<EventText>),
}

impl LiveMessage {
    /// `data` is JSON on one line.
    pub fn snapshot(data: &str) -> Self {
        Self::Snapshot(Arc::new(EventText::new(format!("event: snapshot\nretry: {RETRY_MS}\ndata: {data}\n\n"))))
    }

    /// `data` is JSON on one line.
    pub fn change(data: &str) -> Self {
        Self::Change(Arc::new(EventText::new(format!("event: change\ndata: {data}\n\n"))))
    }

    pub fn text(&self) -> &Arc<EventText> {
        match self {
            Self::Snapshot(text) | Self::Change(text) => text,
        }
    }
}

/// The text of one server-sent event.
#[derive(Debug)]
pub struct EventText {
    plain: Bytes,
    deflated: OnceLock<Deflated>,
}

impl PartialEq for EventText {
    fn eq(&self, other: &Self) -> bool {
        self.plain == other.plain
    }
}

/// A part of a deflate stream. It ends with a flush, so that a client reads all of it at once, and it refers to nothing
/// before it, so that it fits into the stream of every reader.
#[derive(Debug)]
struct Deflated {
    bytes: Bytes,
    crc: Crc,
}

impl EventText {
    pub fn new(plain: String) -> Self {
        Self { plain: plain.into(), deflated: OnceLock::new() }
    }

    /// A comment, which tells a client that the server still lives.
    pub fn keep_alive() -> Self {
        Self::new(":\n\n".to_owned())
    }

    pub fn plain(&self) -> &Bytes {
        &self.plain
    }

    /// Compresses the event now, if that was not done before.
    pub fn compress(&self) {
        self.deflated();
    }

    fn deflated(&self) -> &Deflated {
        self.deflated.get_or_init(|| {
            let mut crc = Crc::new();
            crc.update(&self.plain);
            Deflated { bytes: deflate(&self.plain).into(), crc }
        })
    }
}

fn deflate(plain: &[u8]) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(Vec::with_capacity(plain.len() / 2), Compression::default());
    // Writing to memory cannot fail.
    let written = encoder.write_all(plain).and_then(|()| encoder.flush());
    debug_assert!(written.is_ok());
    std::mem::take(encoder.get_mut())
}

/// The gzip stream of one reader. It keeps a checksum only: an encoder of its own would cost 300 KB for each reader.
#[derive(Debug, Default)]
pub struct GzipStream {
    crc: Crc,
}

impl GzipStream {
    /// What the stream begins with: deflate, no name, no time.
    pub const HEAD: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];

    /// The next part of the stream.
    pub fn add(&mut self, event: &EventText) -> Bytes {
        let Deflated { bytes, crc } = event.deflated();
        self.crc.combine(crc);
        bytes.clone()
    }

    /// What the stream ends with: an empty last block, the checksum and the length.
    pub fn end(&self) -> Bytes {
        let mut end = vec![3, 0];
        end.extend(self.crc.sum().to_le_bytes());
        end.extend(self.crc.amount().to_le_bytes());
        end.into()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Read;

    use flate2::read::GzDecoder;
    use flate2::write;

    use super::*;

    #[test]
    fn each_message_can_be_read_before_the_next_one_comes_and_the_stream_ends_well() {
        let messages = [LiveMessage::snapshot("{\"slots\":[]}"), LiveMessage::change("{\"slots\":[[0,1,2,3,0]]}")];
        let (mut gzip, mut whole) = (GzipStream::default(), GzipStream::HEAD.to_vec());
        let mut decoder = write::GzDecoder::new(Vec::new());
        decoder.write_all(&GzipStream::HEAD).unwrap();
        let mut expected = Vec::new();
        for message in messages.iter().chain(&messages) {
            let part = gzip.add(message.text());
            decoder.write_all(&part).unwrap();
            decoder.flush().unwrap();
            expected.extend_from_slice(message.text().plain());
            assert_eq!(decoder.get_ref(), &expected);
            whole.extend_from_slice(&part);
        }
        whole.extend_from_slice(&gzip.end());
        let mut read = Vec::new();
        GzDecoder::new(&whole[..]).read_to_end(&mut read).unwrap();
        assert_eq!(read, expected);
    }
}
