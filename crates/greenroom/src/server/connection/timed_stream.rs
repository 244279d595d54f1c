//! This module adds time limits for writing to the stream of a connection.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use axum::body::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

use super::{Shared, Times};

/// A stream that ends when its client reads nothing for too long. A slow client is still served: the kernel reports
/// progress for each third of its buffer, so a limit of 30 s means 3 KiB per second.
pub(super) struct TimedStream {
    pub stream: TcpStream,
    /// Bytes that were already read and belong to the next request.
    pub already_read: Bytes,
    pub shared: Arc<Shared>,
    pub times: Times,
    /// Set while the client reads nothing.
    pub waiting: Option<WriteDeadline>,
}

pub(super) struct WriteDeadline {
    until: Pin<Box<Sleep>>,
    is_last: bool,
}

impl TimedStream {
    /// Returns the result of an attempt to write, or an error when the time limit has passed.
    fn progress<T>(&mut self, cx: &mut Context<'_>, attempt: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if attempt.is_ready() {
            self.waiting = None;
            return attempt;
        }
        let is_last = self.shared.is_stopping.load(Ordering::SeqCst);
        if self.waiting.as_ref().is_none_or(|waiting| is_last && !waiting.is_last) {
            let time = if is_last { self.times.last_write } else { self.times.write };
            self.waiting = Some(WriteDeadline { until: Box::pin(tokio::time::sleep(time)), is_last });
        }
        let Some(waiting) = &mut self.waiting else { return Poll::Pending };
        ready!(waiting.until.as_mut().poll(cx));
        metrics::counter!("greenroom_http_unread_answers_total").increment(1);
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read the response")))
    }
}

impl AsyncRead for TimedStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.already_read.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buffer);
        }
        let length = self.already_read.len().min(buffer.remaining());
        buffer.put_slice(&self.already_read.split_to(length));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for TimedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        let attempt = Pin::new(&mut self.stream).poll_write(cx, buffer);
        self.progress(cx, attempt)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let attempt = Pin::new(&mut self.stream).poll_write_vectored(cx, buffers);
        self.progress(cx, attempt)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Hyper flushes when it has nothing left to write.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = ready!(Pin::new(&mut self.stream).poll_flush(cx));
        self.shared.written();
        Poll::Ready(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
