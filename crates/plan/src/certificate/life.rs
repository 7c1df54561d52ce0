//! When does a certificate begin and end, and when is it time for the next one?

use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use sha2::{Digest, Sha256};

use crate::facts::CertificateFacts;

/// How far a certificate's start lies back, so that a peer whose clock is slow takes it (`design.md` §5).
const BACKDATE: SignedDuration = SignedDuration::from_mins(10);
/// What is left of a lifetime when the renewal is due, as a divisor: a third.
const REST: i32 = 3;
/// The part of a lifetime within which renewals are spread, as a divisor.
const SPREAD: i32 = 15;

/// The start of a certificate that is made now.
pub(super) fn start(now: Timestamp) -> Timestamp {
    now.checked_sub(BACKDATE).unwrap_or(now)
}

/// The end of a certificate that is made now for so many seconds; it does not outlive its CA.
pub(super) fn end(now: Timestamp, seconds: i64, ca: Option<&CertificateFacts>) -> Timestamp {
    let end = after(now, seconds);
    ca.map_or(end, |ca| end.min(ca.not_after))
}

/// So many seconds later.
pub(super) fn after(time: Timestamp, seconds: i64) -> Timestamp {
    time.checked_add(SignedDuration::from_secs(seconds))
        .unwrap_or(Timestamp::MAX)
}

/// When a certificate was made: its start, without what it was dated back. One that spans less than that was not dated
/// back.
pub(super) fn issued(certificate: &CertificateFacts) -> Timestamp {
    certificate
        .not_before
        .checked_add(BACKDATE)
        .ok()
        .filter(|issued| *issued < certificate.not_after)
        .unwrap_or(certificate.not_before)
}

/// When a certificate is renewed: at two thirds of its life, up to a fifteenth of it earlier, by its fingerprint, so
/// that certificates made together are not renewed together. What it was dated back is no part of its life: of one that
/// lives for seconds, the ten minutes would be nearly all.
pub(super) fn renewal(certificate: &CertificateFacts) -> Timestamp {
    let life = certificate.not_after.duration_since(issued(certificate));
    let lot = Sha256::digest(&certificate.fingerprint);
    let lot = i32::from(lot.first().copied().unwrap_or_default());
    let early = (life / SPREAD / 256).saturating_mul(lot);
    certificate
        .not_after
        .checked_sub(life / REST + early)
        .unwrap_or(certificate.not_after)
}

/// How long it is until then; not at all where that is over.
pub(super) fn wait(now: Timestamp, until: Timestamp) -> Duration {
    Duration::try_from(until.duration_since(now)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(now: i64, seconds: i64, fingerprint: &str) -> CertificateFacts {
        let now = Timestamp::from_second(now).unwrap();
        CertificateFacts {
            subject: String::new(),
            issuer: String::new(),
            dns: std::collections::BTreeSet::new(),
            ips: std::collections::BTreeSet::new(),
            client: true,
            server: true,
            is_ca: false,
            path_length: None,
            not_before: start(now),
            not_after: end(now, seconds, None),
            key_id: None,
            authority_id: None,
            fingerprint: fingerprint.to_owned(),
        }
    }

    #[test]
    fn two_thirds_are_of_the_lifetime_that_was_asked_for() {
        for seconds in [6, 60, 3600, 5 * 365 * 24 * 3600] {
            for fingerprint in ["a", "b", "c", "d"] {
                let certificate = certificate(1_900_000_000, seconds, fingerprint);
                let age = renewal(&certificate).duration_since(issued(&certificate));
                let part = age.as_secs_f64() / f64::from(i32::try_from(seconds).unwrap());
                assert!((0.6..0.6667).contains(&part), "{seconds} s: {part}");
            }
        }
    }

    #[test]
    fn certificates_made_together_are_not_renewed_together() {
        let times: std::collections::BTreeSet<Timestamp> = (0..100)
            .map(|n| renewal(&certificate(1_900_000_000, 86_400, &n.to_string())))
            .collect();
        assert!(times.len() > 50, "{}", times.len());
    }

    #[test]
    fn the_ends_of_time_are_no_reason_to_panic() {
        let first = certificate(0, 60, "a");
        let odd = CertificateFacts {
            not_before: Timestamp::MAX,
            not_after: Timestamp::MIN,
            ..first.clone()
        };
        assert_eq!(issued(&odd), Timestamp::MAX);
        let _ = renewal(&odd);
        let endless = CertificateFacts {
            not_before: Timestamp::MIN,
            not_after: Timestamp::MAX,
            ..first
        };
        let _ = renewal(&endless);
        assert_eq!(after(Timestamp::MAX, i64::MAX), Timestamp::MAX);
        assert_eq!(start(Timestamp::MIN), Timestamp::MIN);
        assert_eq!(wait(Timestamp::MAX, Timestamp::MIN), Duration::ZERO);
    }
}
