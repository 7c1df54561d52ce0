//! How does a connection end while an answer is on its way? With half of it there.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, Incoming};
use tokio::time::{Sleep, sleep};

/// A body that fails after a time, and its connection with it.
pub(super) struct Until {
    body: Incoming,
    timer: Pin<Box<Sleep>>,
}

impl Until {
    pub(super) fn new(body: Incoming, after: Duration) -> Self {
        Self {
            body,
            timer: Box::pin(sleep(after)),
        }
    }
}

impl Body for Until {
    type Data = Bytes;
    type Error = super::Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, super::Broken>>> {
        if self.timer.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err(io::Error::other("cut").into())));
        }
        let body = Pin::new(&mut self.body);
        body.poll_frame(context)
            .map_err(|error| io::Error::other(error).into())
    }
}
