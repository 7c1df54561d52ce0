//! What is ordered of the workshop, and what is told when it is done?

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use spanwire_api::Certificate;

use super::{Wish, life};
use crate::env::Env;
use crate::facts::SecretFacts;
use crate::plan::{Event, Issue, Legacy, Live, ObjectKind, Source};
use crate::settle::child;
use crate::{labels, names};

/// Why something is ordered.
pub(super) enum Cause {
    /// There is no Secret yet.
    Missing,
    /// Key and certificate are to be others, and why.
    Renewal(String),
    /// The same, because somebody else has changed the Secret.
    Repair(String),
    /// What stands around them is to be other, and why.
    Surroundings(String),
    /// The same, because the CA was replaced: both are trusted from now on.
    Bundle(String),
}

/// The order.
pub(super) fn order(
    certificate: &Certificate,
    wish: &Wish<'_>,
    signer: Option<&SecretFacts>,
    live: Option<&SecretFacts>,
    (cause, legacy): (&Cause, Legacy),
    env: &Env<'_>,
) -> Issue {
    let seconds = if wish.ca.is_some() {
        env.config.leaf_seconds
    } else {
        env.config.ca_seconds
    };
    Issue {
        secret: child(
            ObjectKind::Secret,
            &secret(certificate, wish, signer, cause, env),
        ),
        live: live.map(|live| Live::of(&live.metadata)),
        subject: wish.subject.to_owned(),
        hosts: wish.hosts.iter().cloned().collect(),
        client: wish.client,
        server: wish.server,
        signer: signer.map(source),
        not_before: life::start(env.now),
        not_after: life::end(env.now, seconds, None),
        rsa: env.config.rsa,
        event: event(wish, cause, &legacy),
        legacy,
    }
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

fn secret(
    certificate: &Certificate,
    wish: &Wish<'_>,
    signer: Option<&SecretFacts>,
    cause: &Cause,
    env: &Env<'_>,
) -> Secret {
    let mut annotations =
        labels::map([(labels::CONTROLLED, "true"), (labels::CERTIFICATE, "true")]);
    if let Some(renew) = wish.renew {
        annotations.insert(labels::RENEWED.to_owned(), renew.clone());
    }
    if let Some(renewed) = signer.and_then(|ca| ca.annotation(labels::RENEWED)) {
        annotations.insert(labels::CA_RENEWED.to_owned(), renewed.clone());
    }
    let stamp = match cause {
        Cause::Bundle(_) => Some(labels::BUNDLED),
        Cause::Repair(_) => Some(labels::REPAIRED),
        _ => None,
    };
    annotations.extend(stamp.map(|stamp| (stamp.to_owned(), env.now.to_string())));
    Secret {
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
    }
}

fn event(wish: &Wish<'_>, cause: &Cause, legacy: &Legacy) -> Event {
    let name = &wish.name;
    let (reason, note) = match cause {
        Cause::Missing => ("Issued", format!("Issued secret \"{name}\": Created")),
        Cause::Renewal(why) if legacy.bridge => (
            "CaChanged",
            format!(
                "Rolled over the CA in secret \"{name}\": {why}; the old key vouches for the new one"
            ),
        ),
        Cause::Renewal(why) | Cause::Repair(why) if wish.ca.is_none() => (
            "CaChanged",
            format!("Replaced the CA in secret \"{name}\": {why}"),
        ),
        Cause::Renewal(why) | Cause::Repair(why) => {
            ("Renewed", format!("Renewed secret \"{name}\": {why}"))
        }
        Cause::Bundle(why) => (
            "CaChanged",
            format!("Changed ca.crt of secret \"{name}\": {why}"),
        ),
        Cause::Surroundings(why) => (
            "BundleChanged",
            format!("Changed ca.crt and chain of secret \"{name}\": {why}"),
        ),
    };
    Event {
        warning: false,
        reason: reason.to_owned(),
        note,
    }
}
