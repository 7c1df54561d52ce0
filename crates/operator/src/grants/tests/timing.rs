//! Does the time of a refusal tell how right a code was, or whether there is such a grant?

use std::hint::black_box;
use std::time::Instant;

use spanwire_plan::Seen;

use super::*;
use crate::stores::Codes;

/// Requests that are timed in one round. What differs by less than a nanosecond shows.
const SAMPLES: usize = 1_000_000;
/// Beyond this Welch's t says that two means differ (Goodwill, Jun, Jaffe, Rohatgi: a testing methodology for side
/// channel resistance).
const DIFFERS: f64 = 4.5;
/// A machine that is busy with something else disturbs one round, a leak shows in each.
const ROUNDS: usize = 3;

#[derive(Clone, Copy, Default)]
struct Moments {
    count: f64,
    mean: f64,
    /// Sum of squared distances from the mean.
    spread: f64,
}

impl Moments {
    fn of(times: &[u32]) -> Self {
        times.iter().fold(Self::default(), |moments, time| {
            let (time, count) = (f64::from(*time), moments.count + 1.0);
            let distance = time - moments.mean;
            let mean = moments.mean + distance / count;
            Self {
                count,
                mean,
                spread: moments.spread + distance * (time - mean),
            }
        })
    }

    fn welch_t(self, other: Self) -> f64 {
        let error = |of: Self| of.spread / (of.count - 1.0) / of.count;
        (self.mean - other.mean) / (error(self) + error(other)).sqrt()
    }
}

/// The largest t between the first kind of request and any other, over this many samples in random order.
fn largest_t(kinds: &[Request], mut ask: impl FnMut(&Request)) -> f64 {
    let mut times = vec![Vec::with_capacity(SAMPLES / kinds.len() * 2); kinds.len()];
    let mut chance = vec![0_u8; SAMPLES];
    aws_lc_rs::rand::fill(&mut chance).unwrap();
    for chance in chance {
        // Half of them are of the first kind: what is rare is slower for a processor that guesses.
        let kind = if chance % 2 == 0 {
            0
        } else {
            1 + usize::from(chance / 2) % (kinds.len() - 1)
        };
        let start = Instant::now();
        ask(black_box(&kinds[kind]));
        times[kind].push(u32::try_from(start.elapsed().as_nanos()).unwrap_or(u32::MAX));
    }
    let mut all: Vec<u32> = times.iter().flatten().copied().collect();
    all.sort_unstable();
    // The slowest tenth was interrupted.
    let limit = all[all.len() - all.len() / 10 - 1];
    let moments: Vec<Moments> = times
        .iter()
        .map(|times| {
            let kept: Vec<u32> = times
                .iter()
                .copied()
                .filter(|time| *time <= limit)
                .collect();
            Moments::of(&kept)
        })
        .collect();
    moments
        .iter()
        .map(|other| moments[0].welch_t(*other).abs())
        .fold(0.0, f64::max)
}

/// The least of what the rounds find, of which one below the limit is enough.
fn least_t(kinds: &[Request], ask: impl Fn(&Request)) -> f64 {
    let mut least = f64::INFINITY;
    for _ in 0..ROUNDS {
        least = least.min(largest_t(kinds, &ask));
        if least < DIFFERS {
            break;
        }
    }
    least
}

/// One for a grant that does not exist, and codes for one that does, with ever more of its beginning.
fn kinds() -> Vec<Request> {
    let unknown = Request {
        grant: uid(100),
        ..request(&"-".repeat(CODE.len()), "nonce")
    };
    let wrong = (0..CODE.len()).map(|right| {
        let (begin, end) = CODE.split_at(right);
        Request {
            grant: uid(50),
            ..request(&(begin.to_owned() + &"-".repeat(end.len())), "nonce")
        }
    });
    std::iter::once(unknown).chain(wrong).collect()
}

fn uid(number: usize) -> String {
    format!("6a9e0f5c-52d3-4d0b-a4f6-0000000{number:05}")
}

#[tokio::test]
async fn the_time_of_a_refusal_tells_nothing() {
    let codes = Codes::default();
    for number in 0..100 {
        let grant = json!({
            "apiVersion": "skupper.io/v2alpha1", "kind": "AccessGrant",
            "metadata": {"name": "g", "namespace": "east", "uid": uid(number)},
            "spec": {}, "status": {"code": CODE},
        });
        let mut grant: Seen<AccessGrant> = serde_json::from_value(grant).unwrap();
        codes.take_from_grant(&mut grant);
    }
    let directory = Directory {
        is_complete: Arc::new(|| true),
        code: Arc::new(move |uid| codes.digest(uid)),
        grant: Arc::new(|_| None),
        told: Arc::new(|_| Map::new()),
        announce: Arc::new(|_, _| {}),
    };
    let server = Cluster::new(1).server_with(directory);
    let source = SOURCE.parse().unwrap();
    let ask = |request: &Request| assert!(server.authenticate(source, request).is_err());
    let t = least_t(&kinds(), ask);
    assert!(t < DIFFERS, "t = {t:.1}");
}

#[test]
fn a_comparison_that_ends_at_the_first_difference_would_show() {
    let ask = |request: &Request| {
        let same = request.code.iter().zip(CODE.as_bytes());
        black_box(same.take_while(|(one, other)| one == other).count());
    };
    let t = least_t(&kinds(), ask);
    assert!(t >= DIFFERS, "t = {t:.1}");
}
