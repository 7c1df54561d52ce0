//! How does an answer come late? All of it by the same time, counted from when each frame was there.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, Incoming};
use tokio::time::{Instant, Sleep, sleep};

/// Frames that wait at once; the API server has to wait with those above that.
const MOST_WAITING: usize = 1024;

/// A frame, the body's failure, or its end.
type Part = Option<Result<Frame<Bytes>, hyper::Error>>;

/// A body whose parts are passed on when they are due.
pub(super) struct Late {
    body: Incoming,
    delay: Duration,
    waiting: VecDeque<(Instant, Part)>,
    has_ended: bool,
    timer: Pin<Box<Sleep>>,
    passed_on: Arc<AtomicUsize>,
}

impl Late {
    /// The body of a head that is here now; `passed_on` counts its frames.
    pub(super) fn new(body: Incoming, delay: Duration, passed_on: Arc<AtomicUsize>) -> Self {
        Self {
            body,
            delay,
            waiting: VecDeque::new(),
            has_ended: false,
            timer: Box::pin(sleep(delay)),
            passed_on,
        }
    }

    /// Waits until the head is due; the time of what comes meanwhile begins when it comes.
    pub(super) async fn head(&mut self) {
        poll_fn(|context| {
            self.take_in(context);
            self.timer.as_mut().poll(context)
        })
        .await;
    }

    fn take_in(&mut self, context: &mut Context<'_>) {
        while !self.has_ended && self.waiting.len() < MOST_WAITING {
            let Poll::Ready(part) = Pin::new(&mut self.body).poll_frame(context) else {
                return;
            };
            self.has_ended = !matches!(part, Some(Ok(_)));
            self.waiting.push_back((Instant::now() + self.delay, part));
        }
    }
}

/// Without a hint of its size: what the head says of it holds.
impl Body for Late {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        this.take_in(context);
        if let Some((due, _)) = this.waiting.front() {
            this.timer.as_mut().reset(*due);
            ready!(this.timer.as_mut().poll(context));
        } else if !this.has_ended {
            return Poll::Pending;
        }
        let part = this.waiting.pop_front().and_then(|(_, part)| part);
        if matches!(part, Some(Ok(_))) {
            this.passed_on.fetch_add(1, Ordering::Relaxed);
        }
        Poll::Ready(part)
    }
}
