//! The messages of OTLP that a trace needs, as Protocol Buffers. There are six, with fields that never change, so they
//! are written here, and no library and no generated code is needed. A test reads them with the official definitions.

use jiff::Timestamp;

use super::Span;

const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const BYTES: u32 = 2;

/// `SpanKind`.
const INTERNAL: u64 = 1;
const SERVER: u64 = 2;
/// `Status.StatusCode`.
const STATUS_ERROR: u64 = 2;

/// A message that is being written.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value as u8) | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn key(&mut self, field: u32, wire_type: u32) {
        self.varint(u64::from(field << 3 | wire_type));
    }

    fn number(&mut self, field: u32, value: u64) {
        self.key(field, VARINT);
        self.varint(value);
    }

    fn fixed64(&mut self, field: u32, value: u64) {
        self.key(field, FIXED64);
        self.0.extend(value.to_le_bytes());
    }

    fn bytes(&mut self, field: u32, value: &[u8]) {
        self.key(field, BYTES);
        self.varint(value.len() as u64);
        self.0.extend(value);
    }

    fn message(&mut self, field: u32, write: impl FnOnce(&mut Message)) {
        let mut inner = Message::default();
        write(&mut inner);
        self.bytes(field, &inner.0);
    }

    /// A `KeyValue` with a text.
    fn attribute(&mut self, field: u32, key: &str, value: &str) {
        self.message(field, |pair| {
            pair.bytes(1, key.as_bytes());
            pair.message(2, |any| any.bytes(1, value.as_bytes()));
        });
    }
}

/// An `ExportTraceServiceRequest` with these spans of one process. `instance` tells it from others.
pub fn request(spans: &[Span], instance: &str) -> Vec<u8> {
    let mut request = Message::default();
    request.message(1, |resource_spans| {
        resource_spans.message(1, |resource| {
            resource.attribute(1, "service.name", "greenroom");
            resource.attribute(1, "service.version", env!("CARGO_PKG_VERSION"));
            resource.attribute(1, "service.instance.id", instance);
        });
        resource_spans.message(2, |scope_spans| {
            scope_spans.message(1, |scope| scope.bytes(1, b"greenroom"));
            for span in spans {
                scope_spans.message(2, |message| write(message, span));
            }
        });
    });
    request.0
}

fn write(message: &mut Message, span: &Span) {
    message.bytes(1, span.bot.0.as_bytes());
    message.bytes(2, &span.id.0);
    if let Some(parent) = &span.parent {
        message.bytes(4, &parent.0);
    }
    message.bytes(5, span.name.as_bytes());
    message.number(6, if span.is_server { SERVER } else { INTERNAL });
    message.fixed64(7, nanoseconds(span.start));
    message.fixed64(8, nanoseconds(span.end));
    for (key, value) in &span.attributes {
        message.attribute(9, key, value);
    }
    if let Some(link) = &span.link {
        message.message(13, |message| {
            message.bytes(1, &link.trace);
            message.bytes(2, &link.span);
        });
    }
    if let Some(error) = &span.error {
        message.message(15, |status| {
            status.bytes(2, error.as_bytes());
            status.number(3, STATUS_ERROR);
        });
    }
}

fn nanoseconds(time: Timestamp) -> u64 {
    u64::try_from(time.as_nanosecond()).unwrap_or(0)
}
