//! This module sends the body of an answer in pieces.

use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};

use super::{Answering, Shared};

/// The size of a piece. Hyper gets an answer in pieces, so that it does not buffer the whole answer.
const PIECE: usize = 32 * 1024;

/// The body of an answer, in pieces. After hyper has taken the last piece, the answer's permits are held until it is
/// written.
#[derive(Debug)]
pub(super) struct Pieces {
    pub body: Body,
    pub rest: Bytes,
    pub answering: Option<Answering>,
    pub shared: Arc<Shared>,
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(frame) => return Poll::Ready(Some(Ok(frame))),
                },
                other => return Poll::Ready(other),
            }
        }
        let piece = self.rest.len().min(PIECE);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(piece)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, of_body) = (self.rest.len() as u64, self.body.size_hint());
        let mut hint = SizeHint::new();
        if let Some(upper) = of_body.upper() {
            hint.set_upper(upper + rest);
        }
        hint.set_lower(of_body.lower() + rest);
        hint
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        if let Some(answering) = self.answering.take() {
            self.shared.unwritten.lock().unwrap_or_else(PoisonError::into_inner).push(answering);
        }
    }
}
