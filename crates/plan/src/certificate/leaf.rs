//! What does the Secret of a leaf need, now that its CA is as it is?
//!
//! Where an old CA vouches for the new one, the leaf is issued anew at once: peers that know either can verify it, and
//! nobody has to be first. Where it does not, bundles come first and new leaves later, so that the routers of one site
//! keep verifying each other (`docs/adr/0010-bridges.md`).

use std::collections::BTreeSet;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::trust::{holds, is_signed_by, is_vouched_for};
use super::{Need, Wish, asked, cut, life};
use crate::env::Env;
use crate::facts::{CertificateFacts, SecretFacts};
use crate::labels;
use crate::plan::Legacy;

/// How long a leaf trusts both CAs before it is issued anew by one that the old one does not vouch for. A change is with
/// the routers within a second where nothing is slow (`facts/order.md` n).
const PAUSE: SignedDuration = SignedDuration::from_secs(10);

/// What the Secret needs.
pub(super) fn need(wish: &Wish<'_>, live: &SecretFacts, ca: &SecretFacts, env: &Env<'_>) -> Need {
    let kept = fingerprints(kept(live, ca, env));
    let renew = |why: String| Need::Renew {
        why,
        legacy: Legacy {
            roots: kept.clone(),
            ..Legacy::default()
        },
    };
    let (Some(current), Some(authority)) = (live.certificate(), ca.certificate()) else {
        return Need::Repair {
            why: "its content was no certificate".to_owned(),
            roots: kept,
        };
    };
    if let Some(why) = unfit(wish, live) {
        return if is_as_issued(live) {
            renew(why)
        } else {
            Need::Repair { why, roots: kept }
        };
    }
    if asked(wish, live) {
        return renew("it was asked for".to_owned());
    }
    if !is_signed_by(live, authority) {
        let is_done = is_vouched_for(ca, live.trusted()) || env.now > current.not_after;
        return if is_done {
            renew(changed(wish))
        } else {
            follow(wish, live, ca, env, renew)
        };
    }
    let renewal = life::renewal(current);
    // At the end of its CA's life a new one would end with the old one.
    let gains = life::end(env.now, env.config.leaf_seconds, Some(authority)) > current.not_after;
    if gains && env.now >= renewal {
        return renew(format!("it would expire at {}", current.not_after));
    }
    if is_surrounded(live, ca) && !has_surplus(live, ca, &kept) {
        let until = if gains { renewal } else { current.not_after };
        let end = bundled(live).map(|since| life::after(since, env.config.leaf_seconds));
        let end = end.filter(|_| !kept.is_empty());
        return Need::Nothing {
            until: end.map_or(until, |end| until.min(end)),
        };
    }
    Need::Surround {
        why: format!(
            "what CA \"{}\" hands on changed",
            wish.ca.unwrap_or_default()
        ),
        legacy: Legacy {
            pair: true,
            roots: kept,
            ..Legacy::default()
        },
        is_bundle: false,
    }
}

/// The CA is another one, and nobody who trusts the old one can tell: both are trusted first.
fn follow(
    wish: &Wish<'_>,
    live: &SecretFacts,
    ca: &SecretFacts,
    env: &Env<'_>,
    renew: impl FnOnce(String) -> Need,
) -> Need {
    match bundled(live).filter(|_| is_surrounded(live, ca)) {
        None => Need::Surround {
            why: format!(
                "{}, and both are trusted until nothing of the old one lives",
                changed(wish)
            ),
            legacy: Legacy {
                pair: true,
                roots: fingerprints(live.trusted()),
                chain: fingerprints(live.chain()),
                ..Legacy::default()
            },
            is_bundle: true,
        },
        Some(since) => {
            let until = since.checked_add(PAUSE).unwrap_or(env.now);
            if env.now < until {
                Need::Nothing { until }
            } else {
                renew(changed(wish))
            }
        }
    }
}

/// Why the certificate is not what the spec says; absent: it is.
pub(super) fn unfit(wish: &Wish<'_>, live: &SecretFacts) -> Option<String> {
    let Some(current) = live.certificate() else {
        return Some("its content was no certificate".to_owned());
    };
    let pair = live.pair.as_ref();
    if let Some(error) = pair.and_then(|pair| pair.key_error.as_ref().or(pair.chain_error.as_ref()))
    {
        return Some(format!("its content was broken: {error}"));
    }
    if pair.is_none() || live.trusted().is_empty() {
        return Some("a file was missing".to_owned());
    }
    if current.subject != cut(wish.subject) {
        return Some("the subject changed".to_owned());
    }
    if current.names() != wish.hosts {
        return Some("the hosts changed".to_owned());
    }
    if (current.client, current.server) != (wish.client, wish.server) {
        return Some("the usages changed".to_owned());
    }
    current.is_ca.then(|| "signing changed".to_owned())
}

/// Whether nobody has changed it since it was issued, as far as that can be told; the incumbent leaves no mark.
fn is_as_issued(live: &SecretFacts) -> bool {
    let pair = live.pair.as_ref();
    let is_whole = pair.is_some_and(|pair| pair.key_error.is_none() && pair.chain_error.is_none());
    let issued = live.annotation(labels::ISSUED);
    let current = live.certificate();
    is_whole
        && !live.trusted().is_empty()
        && current.is_some_and(|own| issued.is_none_or(|issued| *issued == own.fingerprint))
}

/// CAs that the leaf trusts and that the CA does not hand on: those that stay while a leaf of theirs may live.
pub(super) fn kept<'w>(
    live: &'w SecretFacts,
    ca: &'w SecretFacts,
    env: &Env<'_>,
) -> impl Iterator<Item = &'w CertificateFacts> {
    let end = bundled(live).map(|since| life::after(since, env.config.leaf_seconds));
    let now = env.now;
    strangers(live, ca)
        .filter(move |root| now <= root.not_after && end.is_some_and(|end| now < end))
}

/// CAs that the leaf trusts and that the CA does not hand on.
pub(super) fn strangers<'w>(
    live: &'w SecretFacts,
    ca: &'w SecretFacts,
) -> impl Iterator<Item = &'w CertificateFacts> {
    live.trusted().iter().filter(|root| !holds(ca, root))
}

/// Since when the leaf trusts the old CA beside the new one.
pub(super) fn bundled(live: &SecretFacts) -> Option<Timestamp> {
    live.annotation(labels::BUNDLED)?.parse().ok()
}

/// Whether the leaf has all that its CA hands on: roots in `ca.crt`, whatever stands between in `tls.crt`.
fn is_surrounded(live: &SecretFacts, ca: &SecretFacts) -> bool {
    let is_trusted = |root: &CertificateFacts| {
        live.trusted()
            .iter()
            .any(|trusted| trusted.fingerprint == root.fingerprint)
    };
    ca.trusted().iter().all(is_trusted) && ca.chain().iter().all(|between| holds(live, between))
}

fn has_surplus(live: &SecretFacts, ca: &SecretFacts, kept: &BTreeSet<String>) -> bool {
    let mut chain = live.chain().iter().skip(1);
    chain.any(|between| !holds(ca, between))
        || strangers(live, ca).any(|root| !kept.contains(&root.fingerprint))
}

fn changed(wish: &Wish<'_>) -> String {
    format!("CA \"{}\" changed", wish.ca.unwrap_or_default())
}

pub(super) fn fingerprints<'w>(
    certificates: impl IntoIterator<Item = &'w CertificateFacts>,
) -> BTreeSet<String> {
    certificates
        .into_iter()
        .map(|certificate| certificate.fingerprint.clone())
        .collect()
}
