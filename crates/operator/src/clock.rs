//! What time is it?

use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// The operator's clock, the one place that reads it.
///
/// Tests may shift it (`--clock-offset`): a static binary does not listen to a faked system clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    offset: SignedDuration,
}

impl Clock {
    /// A clock that is `offset` ahead of the system's.
    pub fn shifted(offset: SignedDuration) -> Self {
        Self { offset }
    }

    /// Now, to the second: what conditions and certificates hold.
    #[allow(
        clippy::disallowed_methods,
        reason = "this is the one place that reads the clock"
    )]
    pub fn now(&self) -> Timestamp {
        let now = Timestamp::now() + self.offset;
        Timestamp::from_second(now.as_second()).unwrap_or(now)
    }
}
