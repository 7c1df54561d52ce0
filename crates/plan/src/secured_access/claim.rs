//! Who plans the certificate of a SecuredAccess, and for which hosts?
//!
//! Several may want one certificate: with `ha` the accesses of both routers do. Exactly one claimant plans it, the
//! oldest, for all who agree with it (`design.md` §2.3).

use std::collections::BTreeSet;

use spanwire_api::condition::CONFIGURED;
use spanwire_api::secured_access::reason;
use spanwire_api::{Certificate, CertificateSpec, SecuredAccess};

use super::address::{endpoints, published};
use super::{AccessType, Wish, certificate_name};
use crate::certificate::hosts;
use crate::env::Config;
use crate::plan::{Act, Child, ObjectKind, Ref, Verdict};
use crate::settle::child;
use crate::world::{World, named, seniority};
use crate::{labels, names};

/// Who plans the certificate that this access wants.
pub(super) enum Claims<'a> {
    /// None is wanted.
    None,
    /// This access does, for itself and for those who agree with it.
    Planner(Vec<Wish<'a>>),
    /// An older one does, for this one too.
    Planned,
    /// An older one does, and they do not agree.
    Lost(Verdict),
}

pub(super) fn claims<'a>(wish: &Wish<'_>, world: &'a World, config: &'a Config) -> Claims<'a> {
    let Some(issuer) = wish.issuer else {
        return Claims::None;
    };
    let wanted = certificate_name(wish.access);
    let mut claimants = claimants(wanted, world, config);
    match claimants.first() {
        None => Claims::None,
        Some(first) if first.issuer != Some(issuer) => Claims::Lost(Verdict::error(
            CONFIGURED,
            reason::CLAIMS_CONFLICT,
            format!(
                "SecuredAccess \"{}\" has certificate \"{wanted}\" signed by \"{}\", not by \"{issuer}\": name the same issuer, or another certificate",
                first.name,
                first.issuer.unwrap_or_default()
            ),
        )),
        Some(first) if first.access.metadata.uid != wish.access.metadata.uid => Claims::Planned,
        Some(_) => {
            claimants.retain(|claimant| claimant.issuer == Some(issuer));
            Claims::Planner(claimants)
        }
    }
}

/// Those that want the certificate of this name, the oldest first.
fn claimants<'a>(certificate: &str, world: &'a World, config: &'a Config) -> Vec<Wish<'a>> {
    let mut claimants: Vec<Wish<'_>> = world
        .secured_accesses
        .fitting()
        .filter(|other| other.metadata.deletion_timestamp.is_none())
        .filter_map(|other| Wish::check(other, config).ok())
        .filter(|other| other.issuer.is_some() && certificate_name(other.access) == certificate)
        .collect();
    claimants.sort_by_key(|claimant| seniority(&claimant.access.metadata));
    claimants
}

/// Deletes the certificates that were made for this access, and that nobody asks for any more.
pub(super) fn surplus(wish: &Wish<'_>, world: &World) -> Vec<Act> {
    let is_made = |certificate: &&Certificate| {
        let annotations = certificate.metadata.annotations.as_ref();
        annotations.is_some_and(|map| map.contains_key(labels::CONTROLLED))
    };
    world
        .certificates
        .fitting()
        .filter(is_made)
        .filter_map(|certificate| certificate.metadata.name.as_ref())
        .filter_map(|name| {
            let kind = ObjectKind::Certificate;
            let live = world.deletable(kind, name, &wish.access.metadata)?;
            let namespace = world.namespace.clone();
            let reference = Ref {
                kind,
                namespace,
                name: name.clone(),
            };
            (!is_wanted(name, world)).then_some(Act::Delete(reference, live))
        })
        .collect()
}

/// Whether anybody asks for the certificate of this name, be the rest of his spec as it may.
fn is_wanted(certificate: &str, world: &World) -> bool {
    let wants = |access: &SecuredAccess| {
        access.metadata.deletion_timestamp.is_none()
            && named(access.spec.issuer.as_deref()).is_some()
            && certificate_name(access) == certificate
    };
    world.secured_accesses.fitting().any(wants)
}

/// The certificate for all who claim it.
pub(super) fn certificate(wish: &Wish<'_>, claimants: &[Wish<'_>], world: &World) -> Child {
    let name = certificate_name(wish.access);
    // The subject stays while it is a claimant's: another one would cost a new key for nothing.
    let subject = world
        .certificates
        .get(name)
        .and_then(crate::seen::Seen::fits)
        .map(|live| live.spec.subject.as_str())
        .filter(|live| claimants.iter().any(|claimant| subject(claimant) == *live))
        .unwrap_or_else(|| subject(wish));
    let mut annotations = labels::map([(labels::CONTROLLED, "true")]);
    let mut hosts = BTreeSet::new();
    for claimant in claimants {
        let uid = claimant.access.metadata.uid.as_deref().unwrap_or_default();
        let wanted = certificate_hosts(claimant, world);
        let list: Vec<&str> = wanted.iter().map(String::as_str).collect();
        annotations.insert(labels::hosts_of(uid), list.join(","));
        hosts.extend(wanted);
    }
    let mut certificate = Certificate::new(
        name,
        CertificateSpec {
            ca: wish.issuer.unwrap_or_default().to_owned(),
            subject: subject.to_owned(),
            hosts: hosts.into_iter().collect(),
            // The two routers of a site with `ha` also dial with it (`design.md` §5).
            client: Some(true),
            server: Some(true),
            ..CertificateSpec::default()
        },
    );
    let mut labels = labels::ours();
    labels.insert(labels::CERTIFICATE.to_owned(), "true".to_owned());
    certificate
        .metadata
        .namespace
        .clone_from(&wish.access.metadata.namespace);
    certificate.metadata.labels = Some(labels);
    certificate.metadata.annotations = Some(annotations);
    certificate.metadata.owner_references = Some(
        claimants
            .iter()
            .map(|claimant| names::owner(claimant.access))
            .collect(),
    );
    child(ObjectKind::Certificate, &certificate)
}

/// Whom a claimant's certificate is for: the RouterAccess behind it, else itself. The accesses of both routers of a site
/// with `ha` thereby agree, whichever was there first.
fn subject<'a>(wish: &Wish<'a>) -> &'a str {
    let annotations = wish.access.metadata.annotations.as_ref();
    annotations
        .and_then(|map| map.get(labels::ROUTER_ACCESS))
        .map_or(wish.name, String::as_str)
}

/// What a claimant's certificate has to be good for: the names inside the cluster, those that its RouterAccess adds, and
/// the addresses known so far. Those that are still published are kept: they are dialled until they are withdrawn, and
/// one that is not known may be back in a moment.
fn certificate_hosts(wish: &Wish<'_>, world: &World) -> BTreeSet<String> {
    let namespace = wish
        .access
        .metadata
        .namespace
        .as_deref()
        .unwrap_or_default();
    let mut wanted = vec![wish.name.to_owned(), format!("{}.{namespace}", wish.name)];
    let annotations = wish.access.metadata.annotations.as_ref();
    if let Some(more) = annotations.and_then(|map| map.get(labels::HOSTS)) {
        wanted.extend(more.split(',').map(str::to_owned));
    }
    if let AccessType::NodePort(host) = wish.access_type {
        wanted.push(host.to_owned());
    }
    let known = endpoints(wish, world);
    let offered = known.iter().chain(published(wish.access));
    wanted.extend(offered.map(|endpoint| endpoint.host.clone()));
    hosts(&wanted)
}
