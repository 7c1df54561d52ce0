//! What time is it?

use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use hyper::HeaderMap;
use hyper::header::DATE;
use k8s_openapi::jiff::fmt::rfc2822::DateTimeParser;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use rustls::time_provider::TimeProvider;
use rustls_pki_types::UnixTime;

/// How far the clock of this machine may be from the API server's. An answer may be on its way for minutes, and certificates
/// are dated back this far (`design.md` §5).
const TOLERANCE: SignedDuration = SignedDuration::from_mins(10);
const DATES: DateTimeParser = DateTimeParser::new();

/// The operator's clock, the one place that reads it. Clones share what they hear.
///
/// It is this machine's, unless that is more than ten minutes away from what the API server says in the `Date` of its answers:
/// then it is the API server's, carried on by a clock that nobody sets. A clock that is a year ahead would give a grant a
/// year more once it is set right, and have all certificates renewed at once.
///
/// Tests may shift this machine's (`--clock-offset`): a static binary does not listen to a faked system clock.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    offset: SignedDuration,
    heard: Arc<RwLock<Option<Heard>>>,
}

/// What the API server said last.
#[derive(Clone, Copy, Debug)]
struct Heard {
    date: Timestamp,
    at: Instant,
    /// Whether that was near enough to this machine's clock.
    agreed: bool,
}

impl Clock {
    /// A clock whose machine is `offset` ahead of the system's.
    pub fn shifted(offset: SignedDuration) -> Self {
        Self {
            offset,
            heard: Arc::default(),
        }
    }

    /// Now, to the second: what conditions and certificates hold.
    pub fn now(&self) -> Timestamp {
        let here = self.here();
        let heard = *self.heard.read().unwrap_or_else(PoisonError::into_inner);
        let now = heard.map_or(here, |heard| heard.correct(here));
        Timestamp::from_second(now.as_second()).unwrap_or(now)
    }

    /// Hears what the API server says, if that is a time.
    pub fn hear(&self, answer: &HeaderMap) {
        let date = answer.get(DATE).and_then(|date| date.to_str().ok());
        let Some(date) = date.and_then(|date| DATES.parse_timestamp(date).ok()) else {
            return;
        };
        let here = self.here();
        let agreed = here.duration_since(date).abs() <= TOLERANCE;
        let heard = Heard {
            date,
            at: Instant::now(),
            agreed,
        };
        let mut place = self.heard.write().unwrap_or_else(PoisonError::into_inner);
        let before = place.replace(heard);
        drop(place);
        if before.is_none_or(|before| before.agreed) && !agreed {
            tracing::warn!(
                here = %here,
                api_server = %date,
                "This machine's clock is far from the API server's, which is gone by until they agree"
            );
        }
    }

    #[allow(
        clippy::disallowed_methods,
        reason = "this is the one place that reads the clock"
    )]
    fn here(&self) -> Timestamp {
        let now = Timestamp::now();
        now.checked_add(self.offset).unwrap_or(now)
    }
}

impl Heard {
    /// The time, where this machine says that it is `here`.
    fn correct(self, here: Timestamp) -> Timestamp {
        let passed = SignedDuration::try_from(self.at.elapsed()).unwrap_or(SignedDuration::MAX);
        match self.date.checked_add(passed) {
            Ok(there) if here.duration_since(there).abs() > TOLERANCE => there,
            _ => here,
        }
    }
}

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        let now = u64::try_from(self.now().as_second()).ok()?;
        Some(UnixTime::since_unix_epoch(Duration::from_secs(now)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const YEAR: i64 = 365 * 24;

    fn away(hours: i64) -> Clock {
        Clock::shifted(SignedDuration::from_hours(hours))
    }

    fn hear(clock: &Clock, date: &str) {
        clock.hear(&HeaderMap::from_iter([(DATE, date.parse().unwrap())]));
    }

    /// As the API server writes it.
    fn date(clock: &Clock) -> String {
        clock
            .now()
            .strftime("%a, %d %b %Y %H:%M:%S GMT")
            .to_string()
    }

    #[test]
    fn a_machine_that_is_a_year_off_goes_by_the_api_server() {
        let right = Clock::default();
        for hours in [YEAR, -YEAR] {
            let clock = away(hours);
            let wrong = clock.now().duration_since(right.now()).abs();
            assert!(wrong > SignedDuration::from_hours(YEAR - 1), "{wrong}");
            hear(&clock, &date(&right));
            let wrong = clock.now().duration_since(right.now()).abs();
            assert!(wrong < SignedDuration::from_mins(1), "{wrong}");
        }
    }

    #[test]
    fn a_machine_that_is_minutes_off_goes_by_itself() {
        let (right, clock) = (
            Clock::default(),
            Clock::shifted(SignedDuration::from_mins(9)),
        );
        hear(&clock, &date(&right));
        let ahead = clock.now().duration_since(right.now());
        assert!(ahead > SignedDuration::from_mins(8), "{ahead}");
    }

    #[test]
    fn what_is_no_date_is_not_heard() {
        let clock = away(YEAR);
        let before = clock.now();
        for no_date in ["", "tomorrow", "Tue, 31 Feb 2026 00:00:00 GMT"] {
            hear(&clock, no_date);
        }
        clock.hear(&HeaderMap::new());
        assert!(clock.now() >= before);
    }
}
