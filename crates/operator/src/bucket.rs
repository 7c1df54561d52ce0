//! How often may something be done?

use tokio::time::Instant;

/// A bucket of tokens that fills up by itself.
#[derive(Clone, Copy)]
pub(crate) struct Bucket {
    capacity: f64,
    rate: f64,
    level: f64,
    since: Instant,
}

impl Bucket {
    /// A full one, for so many at once and so many a second.
    pub(crate) fn new(capacity: f64, rate: f64, since: Instant) -> Self {
        Self {
            capacity,
            rate,
            level: capacity,
            since,
        }
    }

    fn level(&self, now: Instant) -> f64 {
        let gained = now.saturating_duration_since(self.since).as_secs_f64() * self.rate;
        self.capacity.min(self.level + gained)
    }

    /// Whether nothing was taken for a while.
    pub(crate) fn is_full(&self, now: Instant) -> bool {
        self.level(now) >= self.capacity
    }

    /// Takes one, if there is one.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let level = self.level(now);
        self.since = now;
        if level < 1.0 {
            self.level = level;
            return false;
        }
        self.level = level - 1.0;
        true
    }
}
