//! What do the rules of the election say?
//!
//! Pure: what was seen and when goes in, what to write comes out.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// How long a lease is its holder's without a change, in seconds. Written into the lease, and believed of others.
const DURATION: i32 = 15;
/// The longest duration that is believed of another holder, in seconds.
const MAX_DURATION: i32 = 600;
/// The least that a lease's times tell apart.
const MOMENT: SignedDuration = SignedDuration::from_micros(1);
/// How long a replica acts on one renewal.
const RENEWAL: Duration = Duration::from_secs(10);

/// What this replica knows of the election.
#[derive(Debug)]
pub(super) struct Election {
    identity: String,
    /// The lease as it was last seen, and when it was first seen so; none where there is no lease.
    seen: Option<(Lease, Instant)>,
    /// Until when this replica acts.
    until: Option<Instant>,
}

/// What to do about the lease.
#[derive(Debug)]
pub(super) enum Step {
    /// It is another's.
    Wait,
    /// There is none.
    Create(LeaseSpec),
    /// It is this replica's, or free.
    Replace(Box<Lease>),
}

impl Election {
    pub(super) fn new(identity: &str) -> Self {
        Self {
            identity: identity.to_owned(),
            seen: None,
            until: None,
        }
    }

    /// The lease is like this now; none: there is no lease.
    pub(super) fn observe(&mut self, live: Option<Lease>, now: Instant) {
        let Some(live) = live else {
            self.seen = None;
            self.until = None;
            return;
        };
        if holder(&live) != Some(&self.identity) {
            self.until = None;
        }
        let since = match &self.seen {
            // Metadata may change without the holder having lived.
            Some((seen, since)) if seen.spec == live.spec => *since,
            _ => now,
        };
        self.seen = Some((live, since));
    }

    /// What to write now, if anything.
    pub(super) fn step(&self, now: Instant, wall: Timestamp) -> Step {
        let Some((seen, since)) = &self.seen else {
            return Step::Create(self.spec(None, wall));
        };
        let is_mine = holder(seen) == Some(&self.identity);
        if !is_mine && holder(seen).is_some() && now < *since + duration(seen) {
            return Step::Wait;
        }
        Step::Replace(Box::new(Lease {
            spec: Some(self.spec(Some(seen), wall)),
            ..seen.clone()
        }))
    }

    /// What was written at `asked` or later was taken.
    pub(super) fn granted(&mut self, lease: Lease, asked: Instant) {
        self.until = Some(asked + RENEWAL);
        self.seen = Some((lease, asked));
    }

    /// Stops acting; gives back the lease as it is to be written so that another may begin at once.
    pub(super) fn let_go(&mut self) -> Option<Lease> {
        self.until.take()?;
        let (seen, _) = self.seen.take()?;
        let spec = seen.spec.clone().unwrap_or_default();
        let spec = LeaseSpec {
            holder_identity: Some(String::new()),
            lease_duration_seconds: Some(1),
            ..spec
        };
        Some(Lease {
            spec: Some(spec),
            ..seen
        })
    }

    pub(super) fn is_leading(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// `then`, or the end of this replica's time if that comes before it.
    pub(super) fn no_later(&self, now: Instant, then: Instant) -> Instant {
        self.until
            .filter(|until| now < *until)
            .map_or(then, |until| until.min(then))
    }

    pub(super) fn until(&self) -> Option<Instant> {
        self.until
    }

    fn spec(&self, seen: Option<&Lease>, wall: Timestamp) -> LeaseSpec {
        let old = seen
            .and_then(|lease| lease.spec.clone())
            .unwrap_or_default();
        let is_mine = seen.and_then(holder) == Some(&self.identity);
        let transitions = old.lease_transitions.unwrap_or_default();
        let renewal = later(wall, &old);
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(DURATION),
            acquire_time: old
                .acquire_time
                .filter(|_| is_mine)
                .or(Some(MicroTime(wall))),
            renew_time: Some(MicroTime(renewal)),
            lease_transitions: Some(if is_mine || seen.is_none() {
                transitions
            } else {
                transitions.saturating_add(1)
            }),
            ..LeaseSpec::default()
        }
    }
}

/// A time after the one before, even if the wall clock was set back meanwhile: others see by the change that the holder
/// lives, and may have missed one in between.
fn later(wall: Timestamp, old: &LeaseSpec) -> Timestamp {
    let next = old
        .renew_time
        .as_ref()
        .and_then(|before| before.0.checked_add(MOMENT).ok());
    next.map_or(wall, |next| next.max(wall))
}

fn holder(lease: &Lease) -> Option<&String> {
    lease
        .spec
        .as_ref()?
        .holder_identity
        .as_ref()
        .filter(|holder| !holder.is_empty())
}

fn duration(lease: &Lease) -> Duration {
    let written = lease
        .spec
        .as_ref()
        .and_then(|spec| spec.lease_duration_seconds);
    let seconds = written.unwrap_or(DURATION).clamp(1, MAX_DURATION);
    Duration::from_secs(u64::from(seconds.unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wall() -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap()
    }

    fn held_by(identity: &str, renewal: i64) -> Lease {
        Lease {
            spec: Some(LeaseSpec {
                holder_identity: Some(identity.to_owned()),
                lease_duration_seconds: Some(15),
                renew_time: Some(MicroTime(Timestamp::from_second(renewal).unwrap())),
                lease_transitions: Some(7),
                ..LeaseSpec::default()
            }),
            ..Lease::default()
        }
    }

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn a_lease_is_anothers_until_it_has_not_changed_for_as_long_as_it_says() {
        let (mut election, start) = (Election::new("me"), Instant::now());
        // Its times say that it ended long ago, or has not begun: they are not read.
        for renewal in [0, 2_000_000_000] {
            election.observe(Some(held_by("other", renewal)), start);
            assert!(matches!(
                election.step(after(start, 14), wall()),
                Step::Wait
            ));
        }
        election.observe(Some(held_by("other", 1)), after(start, 10));
        election.observe(Some(held_by("other", 1)), after(start, 20));
        assert!(matches!(
            election.step(after(start, 24), wall()),
            Step::Wait
        ));
        let Step::Replace(lease) = election.step(after(start, 25), wall()) else {
            panic!("it waits")
        };
        let spec = lease.spec.unwrap();
        assert_eq!(spec.holder_identity.as_deref(), Some("me"));
        assert_eq!(spec.lease_transitions, Some(8));
        assert_eq!(spec.acquire_time, Some(MicroTime(wall())));
    }

    #[test]
    fn a_free_lease_is_taken_at_once() {
        let (mut election, start) = (Election::new("me"), Instant::now());
        election.observe(None, start);
        assert!(matches!(election.step(start, wall()), Step::Create(_)));
        election.observe(Some(held_by("", 1)), start);
        assert!(matches!(election.step(start, wall()), Step::Replace(_)));
        // One's own, from before a restart.
        election.observe(Some(held_by("me", 1)), start);
        let Step::Replace(lease) = election.step(start, wall()) else {
            panic!("it waits")
        };
        assert_eq!(lease.spec.unwrap().lease_transitions, Some(7));
        assert!(!election.is_leading(start));
    }

    #[test]
    fn a_renewal_counts_from_when_it_was_asked_for() {
        let (mut election, start) = (Election::new("me"), Instant::now());
        election.granted(held_by("me", 1), start);
        assert!(election.is_leading(after(start, 9)));
        assert!(!election.is_leading(after(start, 10)));
        election.granted(held_by("me", 2), after(start, 8));
        assert!(election.is_leading(after(start, 17)));
    }

    #[test]
    fn a_replica_that_sees_another_holder_stops_at_once() {
        let (mut election, start) = (Election::new("me"), Instant::now());
        election.granted(held_by("me", 1), start);
        election.observe(Some(held_by("other", 1)), after(start, 1));
        assert!(!election.is_leading(after(start, 1)));
        election.granted(held_by("me", 1), start);
        election.observe(None, after(start, 1));
        assert!(!election.is_leading(after(start, 1)));
    }

    #[test]
    fn every_renewal_is_seen_whatever_the_wall_clock_does() {
        let (mut election, start) = (Election::new("me"), Instant::now());
        let mut before = held_by("me", 1_900_000_000);
        for turn in 0..4 {
            election.granted(before.clone(), after(start, turn));
            let Step::Replace(lease) = election.step(after(start, turn), wall()) else {
                panic!("it waits")
            };
            let time = |lease: &Lease| lease.spec.as_ref()?.renew_time.clone();
            assert!(time(&lease) > time(&before));
            before = *lease;
        }
    }

    #[test]
    fn letting_go_leaves_a_lease_that_another_may_take() {
        let (mut election, start) = (Election::new("me"), Instant::now());
        assert!(election.let_go().is_none());
        election.granted(held_by("me", 1), start);
        let lease = election.let_go().unwrap();
        assert!(!election.is_leading(start));
        let mut other = Election::new("other");
        other.observe(Some(lease), start);
        assert!(matches!(other.step(start, wall()), Step::Replace(_)));
    }
}
