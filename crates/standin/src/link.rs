//! How does a connection between routers stay alive, and why does it end?

use std::io;
use std::time::Duration;

use fe2o3_amqp::types::definitions::Error;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;

use crate::connection::Row;
use crate::router::Router;
use crate::tls::Credentials;
use crate::wire::{Frame, Frames};
use crate::wording::{describe, idle_error};

/// A neighbour says hello this often.
const HELLO: Duration = Duration::from_secs(1);
/// A silent peer's connection is closed after this long.
pub(crate) const IDLE: Duration = Duration::from_secs(16);

/// What a connection is kept by.
pub(crate) struct Keeper<'a> {
    pub(crate) router: &'a Router,
    pub(crate) row: &'a Row,
    /// Do hellos on it make a neighbour?
    pub(crate) is_neighbour: bool,
    /// The credentials that it was opened with, and news of when these are too old.
    pub(crate) ordinal: u64,
    pub(crate) news: Option<watch::Receiver<Credentials>>,
    pub(crate) stop: &'a CancellationToken,
}

impl Keeper<'_> {
    /// Keeps an inter-router or edge connection until it ends; an error says what went wrong.
    ///
    /// A hello is an empty frame: that is all that a stand-in tells its neighbour.
    pub(crate) async fn keep(mut self, frames: &mut Frames) -> io::Result<()> {
        let mut hello = interval_at(Instant::now() + HELLO, HELLO);
        hello.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut heard = Instant::now();
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return close(frames, None).await,
                () = outdated(&mut self.news, self.ordinal) => return close(frames, None).await,
                _ = hello.tick() => {
                    if heard.elapsed() >= IDLE {
                        return close(frames, Some(idle_error())).await;
                    }
                    // A peer that reads nothing must not hold up the clock.
                    if let Ok(sent) = tokio::time::timeout(HELLO / 2, frames.send_empty()).await {
                        sent?;
                    }
                }
                frame = frames.next() => {
                    heard = Instant::now();
                    match frame? {
                        Frame::Close(None) => return Ok(()),
                        Frame::Close(Some(reason)) => return Err(io::Error::other(reason)),
                        Frame::Empty | Frame::Other => {
                            if self.is_neighbour {
                                self.router.links.hello(self.row.id);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Says goodbye, if the peer is still there to hear it, and ends with the same reason.
async fn close(frames: &mut Frames, error: Option<Error>) -> io::Result<()> {
    let reason = error.as_ref().map(describe);
    let _ = tokio::time::timeout(HELLO, frames.send_close(error)).await;
    reason.map_or(Ok(()), |reason| Err(io::Error::other(reason)))
}

/// Ready once credentials of this ordinal are no longer valid.
async fn outdated(news: &mut Option<watch::Receiver<Credentials>>, ordinal: u64) {
    if let Some(receiver) = news {
        let is_too_old = receiver
            .wait_for(|current| current.oldest_valid > ordinal)
            .await;
        if is_too_old.is_ok() {
            return;
        }
    }
    std::future::pending::<()>().await;
}
