//! How much is too much?
//!
//! Wrong tries cost whoever makes them, and only him: they are counted by address, and a right code is never refused
//! for somebody else's wrong ones, since behind one address there may be many clients. So a code is not protected by
//! these limits but by its length (at least 128 bits); they keep the noise of guessing cheap. Redemptions have a
//! limit in total, because each costs the API server a write. A repeat is counted by address too: whoever has one good
//! code could keep everybody else from theirs with it.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

use crate::bucket::Bucket;

/// Wrong tries of one address: this many at once …
const SOURCE_BURST: f64 = 20.0;
/// … and this many a second.
const SOURCE_RATE: f64 = 5.0;
/// Wrong tries of everybody: this many at once, and a second.
const TOTAL_WRONG: f64 = 500.0;
/// Redemptions: this many at once …
const GRANT_BURST: f64 = 1000.0;
/// … and this many a second.
const GRANT_RATE: f64 = 500.0;
/// The most addresses that are told apart. Those beyond share one bucket.
const SOURCES: usize = 4096;

/// What is left to whom.
pub(super) struct Limits(Mutex<Buckets>);

struct Buckets {
    by_source: HashMap<IpAddr, Bucket>,
    others: Bucket,
    wrong: Bucket,
    grants: Bucket,
}

impl Default for Limits {
    fn default() -> Self {
        let now = Instant::now();
        Self(Mutex::new(Buckets {
            by_source: HashMap::new(),
            others: Bucket::new(SOURCE_BURST, SOURCE_RATE, now),
            wrong: Bucket::new(TOTAL_WRONG, TOTAL_WRONG, now),
            grants: Bucket::new(GRANT_BURST, GRANT_RATE, now),
        }))
    }
}

impl Limits {
    /// Counts a wrong try from this address. Whether it was one too many.
    pub(super) fn is_excessive(&self, source: IpAddr) -> bool {
        let now = Instant::now();
        self.with(|buckets| {
            let is_total = !buckets.wrong.take(now);
            !buckets.of(neighbourhood(source), now).take(now) || is_total
        })
    }

    /// Counts a repeat of a claim from this address, which costs work each time and its maker nothing. Whether it was one
    /// too many; what others guess wrongly has no part in it.
    pub(super) fn is_insistent(&self, source: IpAddr) -> bool {
        let now = Instant::now();
        self.with(|buckets| !buckets.of(neighbourhood(source), now).take(now))
    }

    /// Whether one more redemption may begin now; counts it if so.
    pub(super) fn may_redeem(&self) -> bool {
        let now = Instant::now();
        self.with(|buckets| buckets.grants.take(now))
    }

    fn with<T>(&self, ask: impl FnOnce(&mut Buckets) -> T) -> T {
        // Numbers, each changed by one assignment: a panic elsewhere leaves none half done.
        ask(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Buckets {
    fn of(&mut self, source: IpAddr, now: Instant) -> &mut Bucket {
        if self.by_source.len() >= SOURCES && !self.by_source.contains_key(&source) {
            self.by_source.retain(|_, bucket| !bucket.is_full(now));
            if self.by_source.len() >= SOURCES {
                return &mut self.others;
            }
        }
        self.by_source
            .entry(source)
            .or_insert_with(|| Bucket::new(SOURCE_BURST, SOURCE_RATE, now))
    }
}

/// Whose address this is: whoever has an IPv6 address has 2⁶⁴ of them.
fn neighbourhood(source: IpAddr) -> IpAddr {
    match source.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use super::*;

    fn excesses(limits: &Limits, source: &str, tries: usize) -> usize {
        (0..tries)
            .filter(|_| limits.is_excessive(source.parse().unwrap()))
            .count()
    }

    #[tokio::test(start_paused = true)]
    async fn wrong_tries_cost_their_source_and_nobody_else() {
        let limits = Limits::default();
        assert_eq!(excesses(&limits, "10.0.0.1", 20), 0);
        assert_eq!(excesses(&limits, "10.0.0.1", 10), 10);
        assert_eq!(excesses(&limits, "10.0.0.2", 20), 0);
        assert!(limits.may_redeem());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(excesses(&limits, "10.0.0.1", 10), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn a_network_of_ipv6_addresses_is_one_source() {
        let limits = Limits::default();
        assert_eq!(excesses(&limits, "2001:db8::1", 20), 0);
        assert_eq!(excesses(&limits, "2001:db8::2", 1), 1);
        assert_eq!(excesses(&limits, "2001:db8:0:1::2", 1), 0);
        assert_eq!(excesses(&limits, "::ffff:10.0.0.3", 20), 0);
        assert_eq!(excesses(&limits, "10.0.0.3", 1), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_crowd_of_sources_costs_no_memory() {
        let limits = Limits::default();
        for n in 0..10_000_u32 {
            limits.is_excessive(Ipv4Addr::from(n).into());
        }
        assert_eq!(limits.with(|buckets| buckets.by_source.len()), SOURCES);
        tokio::time::advance(Duration::from_secs(10)).await;
        limits.is_excessive(Ipv4Addr::from(20_000).into());
        assert_eq!(limits.with(|buckets| buckets.by_source.len()), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn redemptions_have_a_limit_in_total() {
        let limits = Limits::default();
        assert_eq!((0..1500).filter(|_| limits.may_redeem()).count(), 1000);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!((0..1500).filter(|_| limits.may_redeem()).count(), 500);
    }
}
