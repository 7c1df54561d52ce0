//! Certificate → Secret: which credential should there be, and is it there?

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::json;
use sha2::{Digest, Sha256};
use spanwire_api::Certificate;
use spanwire_api::certificate::reason;
use spanwire_api::condition::READY;
use spanwire_api::condition::reason::{CREDENTIALS_EXPIRED, CREDENTIALS_INVALID};

use crate::credential::{self, Fault};
use crate::env::Env;
use crate::facts::{CertificateFacts, SecretFacts};
use crate::kinds::{Changed, all};
use crate::plan::{Act, Event, Issue, Legacy, Live, ObjectKind, Plan, Source, Status, Verdict};
use crate::settle::child;
use crate::world::{World, owns};
use crate::{labels, names};

/// How far a certificate's start lies back, so that a peer whose clock is slow takes it (`design.md` §5).
const BACKDATE: SignedDuration = SignedDuration::from_mins(10);
/// What is left of a lifetime when the renewal is due, as a divisor: a third.
const REST: i32 = 3;

pub(crate) fn plan(certificate: &Certificate, world: &World, env: &Env<'_>) -> Plan {
    if certificate.metadata.deletion_timestamp.is_some() {
        return Plan::nothing();
    }
    let wish = match Wish::check(certificate) {
        Ok(wish) => wish,
        Err(verdict) => return told(verdict, None),
    };
    let live = world.secrets.get(&wish.name);
    let signer = match wish
        .ca
        .map(|ca| credential::signing(world, ca, env.now))
        .transpose()
    {
        Ok(signer) => signer,
        Err(fault) => return without_signer(&wish, live, &fault),
    };
    let Some(live) = live else {
        if let Some(leaf) = orphan(&wish, certificate, world) {
            return told(ca_lost(&wish, leaf), None);
        }
        return issue(certificate, &wish, signer, None, ("Issued", "Created"), env);
    };
    if !owns(&certificate.metadata, &live.metadata) {
        return told(foreign(&wish, live, signer, env.now), live.certificate());
    }
    if live.metadata.deletion_timestamp.is_some() {
        let message = format!("secret \"{}\" is being deleted", wish.name);
        return told(Verdict::pending(READY, reason::PENDING, message), None);
    }
    match due(&wish, live, signer, env.now) {
        Some(why) => issue(
            certificate,
            &wish,
            signer,
            Some(live),
            ("Renewed", &why),
            env,
        ),
        None => settled(live, env),
    }
}

pub(crate) fn wakes(changed: &Changed<'_>, world: &World) -> Vec<String> {
    match changed {
        Changed::Object(ObjectKind::Certificate | ObjectKind::Secret, _) => {
            all(&world.certificates)
        }
        _ => Vec::new(),
    }
}

pub(crate) fn references(certificate: &Certificate) -> Vec<(ObjectKind, String)> {
    let own = certificate.metadata.name.clone();
    let ca = Some(certificate.spec.ca.clone()).filter(|ca| !ca.is_empty());
    own.into_iter()
        .chain(ca)
        .map(|name| (ObjectKind::Secret, name))
        .collect()
}

/// A spec that makes sense.
struct Wish<'a> {
    name: String,
    subject: &'a str,
    hosts: BTreeSet<String>,
    /// The Secret that signs; absent for a CA that signs itself.
    ca: Option<&'a str>,
    client: bool,
    server: bool,
    /// The value of the annotation that asks for a new key.
    renew: Option<&'a String>,
}

impl<'a> Wish<'a> {
    fn check(certificate: &'a Certificate) -> Result<Self, Verdict> {
        let spec = &certificate.spec;
        let refused = |message: &str| Err(Verdict::error(READY, reason::INVALID_OBJECT, message));
        if spec.subject.trim().is_empty() {
            return refused("spec.subject is empty: name whom the certificate is for");
        }
        let is_ca = spec.signing.unwrap_or_default();
        if spec.ca.is_empty() && !is_ca {
            return refused("spec.ca is empty: name the secret of the CA that should sign");
        }
        let (client, server) = (
            spec.client.unwrap_or_default(),
            spec.server.unwrap_or_default(),
        );
        // Neither means both (`design.md` §5).
        let both = !client && !server;
        Ok(Self {
            name: certificate.metadata.name.clone().unwrap_or_default(),
            subject: spec.subject.trim(),
            hosts: hosts(&spec.hosts),
            ca: (!is_ca).then_some(spec.ca.as_str()),
            client: client || both,
            server: server || both,
            renew: certificate
                .metadata
                .annotations
                .as_ref()
                .and_then(|map| map.get(labels::RENEW)),
        })
    }
}

/// Host names as they compare: trimmed, without duplicates, IP addresses in canonical text.
pub(crate) fn hosts(hosts: &[String]) -> BTreeSet<String> {
    hosts
        .iter()
        .map(|host| host.trim())
        .filter(|host| !host.is_empty())
        .map(|host| {
            host.parse::<std::net::IpAddr>()
                .map_or_else(|_| host.to_owned(), |ip| ip.to_string())
        })
        .collect()
}

/// Why the Secret of ours should get another certificate now; absent: it should not.
fn due(
    wish: &Wish<'_>,
    live: &SecretFacts,
    signer: Option<&SecretFacts>,
    now: Timestamp,
) -> Option<String> {
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
    if wish.ca.is_some() {
        // A CA has no names and no usages of its own.
        if current.names() != wish.hosts {
            return Some("the hosts changed".to_owned());
        }
        if (current.client, current.server) != (wish.client, wish.server) {
            return Some("the usages changed".to_owned());
        }
    }
    if current.is_ca != wish.ca.is_none() {
        return Some("signing changed".to_owned());
    }
    let ca = signer.and_then(SecretFacts::certificate);
    if ca.is_some_and(|ca| {
        !live
            .trusted()
            .iter()
            .any(|trusted| trusted.fingerprint == ca.fingerprint)
    }) {
        return Some(format!("CA \"{}\" changed", wish.ca.unwrap_or_default()));
    }
    let renewed = live
        .metadata
        .annotations
        .as_ref()
        .and_then(|map| map.get(labels::RENEWED));
    if wish.renew.is_some() && wish.renew != renewed {
        return Some("it was asked for".to_owned());
    }
    (now >= renewal(current)).then(|| format!("it would expire at {}", current.not_after))
}

/// When a certificate is renewed: at two thirds of its life, up to a fifteenth of it earlier, by its fingerprint, so
/// that certificates issued together are not renewed together.
fn renewal(certificate: &CertificateFacts) -> Timestamp {
    let life = certificate.not_after.duration_since(certificate.not_before);
    let lot = i32::from(
        Sha256::digest(&certificate.fingerprint)
            .first()
            .copied()
            .unwrap_or_default(),
    );
    let early = (life / 15 / 256).saturating_mul(lot);
    certificate.not_after - life / REST - early
}

/// Common names have 64 characters at most (RFC 5280, appendix A.1, ub-common-name-length).
fn cut(subject: &str) -> String {
    subject.chars().take(64).collect()
}

fn issue(
    certificate: &Certificate,
    wish: &Wish<'_>,
    signer: Option<&SecretFacts>,
    live: Option<&SecretFacts>,
    (event, why): (&str, &str),
    env: &Env<'_>,
) -> Plan {
    let seconds = if wish.ca.is_some() {
        env.config.leaf_seconds
    } else {
        env.config.ca_seconds
    };
    let mut annotations =
        labels::map([(labels::CONTROLLED, "true"), (labels::CERTIFICATE, "true")]);
    if let Some(renew) = wish.renew {
        annotations.insert(labels::RENEWED.to_owned(), renew.clone());
    }
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(wish.name.clone()),
            namespace: certificate.metadata.namespace.clone(),
            annotations: Some(annotations),
            labels: Some(labels::ours()),
            owner_references: Some(vec![names::owner(certificate)]),
            ..ObjectMeta::default()
        },
        type_: Some("kubernetes.io/tls".to_owned()),
        ..Secret::default()
    };
    let order = Issue {
        secret: child(ObjectKind::Secret, &secret),
        live: live.map(|live| Live::of(&live.metadata)),
        subject: wish.subject.to_owned(),
        hosts: wish.hosts.iter().cloned().collect(),
        client: wish.client,
        server: wish.server,
        signer: signer.map(source),
        not_before: env.now - BACKDATE,
        not_after: env.now + SignedDuration::from_secs(seconds),
        rsa: env.config.rsa,
        legacy: Legacy::default(),
        event: Event {
            warning: false,
            reason: event.to_owned(),
            note: format!("{event} secret \"{}\": {why}", wish.name),
        },
    };
    let message = format!("secret \"{}\" is being issued", wish.name);
    let mut plan = told(Verdict::pending(READY, reason::PENDING, message), None);
    if let (Some(live), Some(status)) = (live, plan.status.as_mut())
        && is_good(live, env.now)
    {
        // A renewal does not make what is in force any worse.
        status.verdicts = vec![Verdict::ready(READY)];
        status.fields = expiration(live.certificate());
    }
    plan.push(READY, true, vec![Act::Issue(Box::new(order))]);
    plan
}

/// A Secret, at the revision whose facts these are.
pub(crate) fn source(facts: &SecretFacts) -> Source {
    let metadata = &facts.metadata;
    Source {
        secret: metadata.name.clone().unwrap_or_default(),
        uid: metadata.uid.clone().unwrap_or_default(),
        resource_version: metadata.resource_version.clone().unwrap_or_default(),
    }
}

fn settled(live: &SecretFacts, env: &Env<'_>) -> Plan {
    let mut plan = told(Verdict::ready(READY), live.certificate());
    if let Some(current) = live.certificate() {
        let wait = renewal(current).duration_since(env.now);
        plan.look_again(Duration::try_from(wait).unwrap_or_default());
    }
    plan
}

/// Without a CA nothing is issued; what is there stays, and is still true while it is valid.
fn without_signer(wish: &Wish<'_>, live: Option<&SecretFacts>, fault: &Fault) -> Plan {
    let current = live.and_then(SecretFacts::certificate);
    let remark = match current {
        Some(_) => format!(
            "; the certificate in secret \"{}\" stays in force",
            wish.name
        ),
        None => String::new(),
    };
    let reason = match fault.reason {
        CREDENTIALS_EXPIRED => reason::CA_EXPIRED,
        CREDENTIALS_INVALID => reason::CA_INVALID,
        other => other,
    };
    let mut plan = told(
        Verdict::error(READY, reason, format!("{}{remark}", fault.message)),
        current,
    );
    // A CA that is not valid yet becomes so without news.
    if reason == reason::CA_INVALID {
        plan.look_again(Duration::from_mins(1));
    }
    plan
}

/// A Secret that is not ours is used as it is, or said not to fit; it is never touched.
fn foreign(
    wish: &Wish<'_>,
    live: &SecretFacts,
    signer: Option<&SecretFacts>,
    now: Timestamp,
) -> Verdict {
    let Some(unfit) = due(wish, live, signer, now) else {
        return Verdict::ready(READY);
    };
    Verdict::error(
        READY,
        reason::NAME_TAKEN,
        format!(
            "secret exists but is not controlled by skupper: \"{}\" does not fit ({unfit}); delete it, or bring one that does",
            wish.name
        ),
    )
}

/// A leaf that a lost CA has signed: nothing is minted silently while one lives (`design.md` §5).
fn orphan<'w>(wish: &Wish<'_>, certificate: &Certificate, world: &'w World) -> Option<&'w str> {
    if wish.ca.is_some() || wish.renew.is_some() {
        return None;
    }
    world.certificates.fitting().find_map(|leaf| {
        let name = leaf.metadata.name.as_deref()?;
        let lives = leaf.spec.ca == wish.name
            && leaf.metadata.uid != certificate.metadata.uid
            && world.secrets.get(name)?.certificate()?.issuer == cut(wish.subject);
        lives.then_some(name)
    })
}

fn ca_lost(wish: &Wish<'_>, leaf: &str) -> Verdict {
    Verdict::error(
        READY,
        reason::CA_LOST,
        format!(
            "secret \"{0}\" is gone while certificates of it live (\"{leaf}\"): restore it from a backup, or ask for a new CA with: \
             kubectl annotate certificate {0} {1}=now",
            wish.name,
            labels::RENEW
        ),
    )
}

fn is_good(live: &SecretFacts, now: Timestamp) -> bool {
    let fits = live
        .pair
        .as_ref()
        .is_some_and(|pair| pair.key_error.is_none() && pair.chain_error.is_none());
    fits && live
        .certificate()
        .is_some_and(|current| now < current.not_after)
}

fn expiration(current: Option<&CertificateFacts>) -> serde_json::Map<String, serde_json::Value> {
    let expiration = current.map(|current| current.not_after.to_string());
    [("expiration".to_owned(), json!(expiration))]
        .into_iter()
        .collect()
}

fn told(verdict: Verdict, current: Option<&CertificateFacts>) -> Plan {
    Plan::only(Status {
        verdicts: vec![verdict],
        fields: expiration(current),
        ..Status::default()
    })
}
