//! What does the Secret of a CA need: a successor, fewer predecessors, or a person?

use std::collections::BTreeSet;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use spanwire_api::Certificate;
use spanwire_api::certificate::reason;
use spanwire_api::condition::READY;

use super::leaf::fingerprints;
use super::trust::{has_issued, is_handed_out, is_left_behind, is_signed_by};
use super::{Need, Wish, asked, cut, life};
use crate::env::Env;
use crate::facts::{CertificateFacts, SecretFacts};
use crate::plan::{Legacy, Verdict};
use crate::world::World;
use crate::{labels, names};

/// How many CAs before the present one are trusted at most, the newest first: a person can ask for a new one as often as
/// there are values for an annotation.
const PREDECESSORS: usize = 8;

/// What the Secret needs.
pub(super) fn need(
    certificate: &Certificate,
    wish: &Wish<'_>,
    live: &SecretFacts,
    world: &World,
    env: &Env<'_>,
) -> Need {
    let current = match usable(live) {
        Ok(current) => current,
        Err(why) => {
            // A CA whose key is gone is lost, whatever is in its place.
            let what = format!("holds no CA that can sign ({why})");
            return match lost(wish, certificate, world, env.now, &what) {
                Some(verdict) => Need::Lost(verdict),
                None => Need::Repair {
                    why,
                    roots: BTreeSet::new(),
                },
            };
        }
    };
    let is_users = is_users(live);
    let why = if asked(wish, live) {
        Some("it was asked for".to_owned())
    } else if is_users {
        None
    } else if current.subject != cut(wish.subject) {
        Some("the subject changed".to_owned())
    } else if env.now >= life::renewal(current) {
        Some(format!("it would expire at {}", current.not_after))
    } else {
        None
    };
    if let Some(why) = why {
        return roll_over(wish, live, current, why, world, env);
    }
    if is_users {
        return users(wish, current, env.now);
    }
    trim(wish, live, current, world, env)
}

/// A new key takes over, and the old one vouches for it.
fn roll_over(
    wish: &Wish<'_>,
    live: &SecretFacts,
    current: &CertificateFacts,
    why: String,
    world: &World,
    env: &Env<'_>,
) -> Need {
    if env.now > current.not_after {
        // Nobody believes what an expired CA vouches for.
        return Need::Renew {
            why,
            legacy: Legacy::default(),
        };
    }
    if current.path_length == Some(0) {
        return Need::Refuse(cannot_cross(wish, current, &why));
    }
    let (roots, chain) = if live.annotation(labels::ISSUED) == Some(&current.fingerprint) {
        let predecessors = predecessors(wish, live, current, world, env);
        let roots: Vec<_> = std::iter::once(current)
            .chain(predecessors)
            .take(PREDECESSORS)
            .collect();
        let chain = fingerprints(bridges(live, &roots));
        (fingerprints(roots), chain)
    } else {
        // What leads from somebody else's CA to its root stays as it is.
        let roots = live.trusted().iter().chain([current]);
        (fingerprints(roots), fingerprints(live.chain()))
    };
    Need::Renew {
        why,
        legacy: Legacy {
            pair: false,
            bridge: true,
            roots,
            chain,
        },
    }
}

/// Nothing, or the end of a predecessor.
fn trim(
    wish: &Wish<'_>,
    live: &SecretFacts,
    current: &CertificateFacts,
    world: &World,
    env: &Env<'_>,
) -> Need {
    let surround = |why: &str, legacy| Need::Surround {
        why: why.to_owned(),
        legacy,
        is_bundle: false,
    };
    if live.trusted().is_empty() {
        let chain = fingerprints(live.chain());
        return surround(
            "a file was missing",
            Legacy {
                pair: true,
                chain,
                ..Legacy::default()
            },
        );
    }
    let until = life::renewal(current);
    if live.annotation(labels::ISSUED) != Some(&current.fingerprint) {
        // What the incumbent made is handed on as it is.
        return Need::Nothing { until };
    }
    let roots: Vec<&CertificateFacts> = predecessors(wish, live, current, world, env).collect();
    let is_known = |root: &CertificateFacts| {
        root.fingerprint == current.fingerprint
            || roots
                .iter()
                .any(|kept| kept.fingerprint == root.fingerprint)
    };
    if !live.trusted().iter().all(is_known) {
        let chain = fingerprints(bridges(live, &roots));
        let roots = fingerprints(roots.into_iter().chain([current]));
        let legacy = Legacy {
            pair: true,
            bridge: false,
            roots,
            chain,
        };
        return surround("nothing of an old CA lives any more", legacy);
    }
    let ends = roots.iter().flat_map(|root| {
        // `not_after` itself is still valid.
        let expired = root.not_after.checked_add(SignedDuration::from_secs(1));
        [expired.unwrap_or(root.not_after), retained(current, env)]
    });
    Need::Nothing {
        until: ends
            .filter(|end| *end > env.now)
            .fold(until, Timestamp::min),
    }
}

/// CAs that are trusted beside the present one because something of theirs may live: a leaf that this namespace has, or
/// one that a remote site has got. Nothing is known of the latter but that it lives no longer than leaves do.
fn predecessors<'w>(
    wish: &Wish<'_>,
    live: &'w SecretFacts,
    current: &CertificateFacts,
    world: &World,
    env: &Env<'_>,
) -> impl Iterator<Item = &'w CertificateFacts> {
    let is_recent = env.now < retained(current, env);
    live.trusted().iter().filter(move |root| {
        root.fingerprint != current.fingerprint
            && env.now <= root.not_after
            && (is_recent || has_leaf(wish, root, world))
    })
}

/// Until when leaves that the predecessor of this CA has signed may live.
fn retained(current: &CertificateFacts, env: &Env<'_>) -> Timestamp {
    life::after(life::issued(current), env.config.leaf_seconds)
}

fn has_leaf(wish: &Wish<'_>, root: &CertificateFacts, world: &World) -> bool {
    let leaves = world
        .certificates
        .fitting()
        .filter(|leaf| leaf.spec.ca == wish.name);
    leaves
        .filter_map(|leaf| world.secrets.get(leaf.metadata.name.as_deref()?))
        .any(|leaf| is_signed_by(leaf, root))
}

/// What stands between the CA and these predecessors: up to the last that one of them has signed.
fn bridges<'w>(
    live: &'w SecretFacts,
    roots: &[&CertificateFacts],
) -> impl Iterator<Item = &'w CertificateFacts> {
    let last = live
        .chain()
        .iter()
        .rposition(|bridge| roots.iter().any(|root| has_issued(root, bridge)));
    live.chain()
        .iter()
        .take(last.map_or(0, |last| last + 1))
        .skip(1)
}

/// Whether somebody has put a CA of their own into our Secret.
pub(super) fn is_users(live: &SecretFacts) -> bool {
    let issued = live.annotation(labels::ISSUED);
    issued.is_some_and(|issued| {
        live.certificate()
            .is_some_and(|own| own.fingerprint != *issued)
    })
}

/// A user's CA is used as it is, and renewed by its user.
fn users(wish: &Wish<'_>, current: &CertificateFacts, now: Timestamp) -> Need {
    if now <= current.not_after {
        return Need::Nothing {
            until: current.not_after,
        };
    }
    Need::Refuse(Verdict::error(
        READY,
        reason::CA_EXPIRED,
        format!(
            "the CA in secret \"{}\" was brought by its user and expired at {}: replace it",
            wish.name, current.not_after
        ),
    ))
}

/// The CA's certificate, if it can sign, or why it cannot.
pub(super) fn usable(live: &SecretFacts) -> Result<&CertificateFacts, String> {
    let current = live
        .certificate()
        .ok_or_else(|| "its content was no certificate".to_owned())?;
    let pair = live
        .pair
        .as_ref()
        .ok_or_else(|| "a file was missing".to_owned())?;
    if let Some(error) = &pair.key_error {
        return Err(format!("its content was broken: {error}"));
    }
    if current.is_ca {
        Ok(current)
    } else {
        Err("it was no CA's".to_owned())
    }
}

/// What is said of a CA whose key is gone, and which nothing takes the place of silently (`design.md` §5); absent where
/// another may: nobody can miss it, or a person has asked for another one and thereby taken that upon themselves, once.
pub(super) fn lost(
    wish: &Wish<'_>,
    certificate: &Certificate,
    world: &World,
    now: Timestamp,
    what: &str,
) -> Option<Verdict> {
    if wish.ca.is_some() {
        return None;
    }
    let mut leaves = leaves(wish, certificate, world).peekable();
    let why = if leaves.peek().is_some() {
        let is_granted = |leaf: &SecretFacts| {
            wish.renew.is_some() && wish.renew != leaf.annotation(labels::CA_RENEWED)
        };
        let (leaf, _) = leaves.find(|(_, secret)| !is_granted(secret))?;
        format!(" while certificates of it live (\"{leaf}\")")
    } else if is_missed(wish, certificate, world, now) && !is_remedied(wish, certificate) {
        ", and certificates of it may live elsewhere, as those of remote sites".to_owned()
    } else {
        return None;
    };
    // Another value than the last, ready to be copied.
    let (overwrite, value) = match wish.renew.map(String::as_str) {
        None => ("", "now"),
        Some("now") => (" --overwrite", "again"),
        Some(_) => (" --overwrite", "now"),
    };
    let message = format!(
        "secret \"{0}\" {what}{why}: restore it from a backup, or ask for a new CA with: kubectl annotate certificate \
         {0}{overwrite} {1}={value}",
        wish.name,
        labels::RENEW
    );
    Some(Verdict::error(READY, reason::CA_LOST, message))
}

/// The leaves of the CA that this namespace has. Those that are left behind are on their way out.
fn leaves<'w>(
    wish: &'w Wish<'_>,
    certificate: &'w Certificate,
    world: &'w World,
) -> impl Iterator<Item = (&'w str, &'w SecretFacts)> {
    world.certificates.fitting().filter_map(move |leaf| {
        let name = leaf.metadata.name.as_deref()?;
        let secret = world.secrets.get(name)?;
        let lives = leaf.spec.ca == wish.name
            && leaf.metadata.uid != certificate.metadata.uid
            && secret.certificate()?.issuer == cut(wish.subject)
            && !is_left_behind(secret, world);
        lives.then_some((name, secret))
    })
}

/// Whether there was a CA that is valid still, and that others than the Certificates of this namespace may trust. What
/// the site's local CA signs stays in the namespace, where all of it is issued anew: that one may be followed at once.
fn is_missed(wish: &Wish<'_>, certificate: &Certificate, world: &World, now: Timestamp) -> bool {
    let lived = remembered(certificate).is_some_and(|end| {
        // What is no time was not written by us, and says that something was there.
        end.parse().map_or(true, |end: Timestamp| now <= end)
    });
    lived && (wish.name != names::LOCAL_CA || is_handed_out(&wish.name, world))
}

/// When the CA ends that there was last. The Certificate's own status says so while the Secret does not, or not any more:
/// one that is made anew, under the same name or not, remembers nothing.
pub(super) fn remembered(certificate: &Certificate) -> Option<&str> {
    let is_ca = certificate.spec.signing.unwrap_or_default();
    let told = certificate.status.as_ref().filter(|_| is_ca)?;
    told.expiration.as_deref()
}

/// Whether somebody has done as the Certificate's own status said. No leaf is there that could tell which wish was granted
/// before, so that no other value counts.
fn is_remedied(wish: &Wish<'_>, certificate: &Certificate) -> bool {
    let told = certificate.status.iter().flat_map(|told| &told.conditions);
    let mut lost = told.filter(|told| told.type_ == READY && told.reason == reason::CA_LOST);
    let asked = |message: &str| {
        let command = message.rsplit_once(labels::RENEW)?.1;
        command.strip_prefix('=').map(str::to_owned)
    };
    wish.renew.is_some() && lost.any(|told| asked(&told.message).as_ref() == wish.renew)
}

fn cannot_cross(wish: &Wish<'_>, current: &CertificateFacts, why: &str) -> Verdict {
    let message = format!(
        "the CA in secret \"{0}\" should be followed by a new one ({why}), but it has path length 0 and cannot vouch for \
         it; it stays in force until {1}. Make a new CA, add it to ca.crt of secret \"{0}\" and give both to the remote \
         sites first, and only then replace tls.crt and tls.key",
        wish.name, current.not_after
    );
    Verdict::error(READY, reason::CA_CANNOT_CROSS, message)
}
