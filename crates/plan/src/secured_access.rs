//! SecuredAccess → Service and Certificate: under which addresses are some pods reached, and is it safe to say so?

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Map, Value, json};
use spanwire_api::condition::{CONFIGURED, RESOLVED};
use spanwire_api::secured_access::reason;
use spanwire_api::{Certificate, CertificateSpec, Endpoint, SecuredAccess};

use crate::certificate::hosts;
use crate::credential::{self, Fault};
use crate::facts::SecretFacts;
use crate::kinds::{Changed, all};
use crate::plan::{Child, Config, Env, ObjectKind, Plan, Status, Verdict};
use crate::settle::{child, settle};
use crate::world::{Named, World, named, owns, seniority};
use crate::{labels, names};

pub(crate) fn plan(access: &SecuredAccess, world: &World, env: &Env<'_>) -> Plan {
    if access.metadata.deletion_timestamp.is_some() {
        return Plan::nothing();
    }
    let wish = match Wish::check(access, env.config) {
        Ok(wish) => wish,
        // Nothing is taken back for a spec that makes no sense: the last good state stays.
        Err(verdict) => return told(verdict, still_resolved(access)),
    };
    let claims = claims(&wish, world, env.config);
    let mut children = vec![service(&wish)];
    if let Claims::Planner(claimants) = &claims {
        children.push(certificate(&wish, claimants, world));
    }
    let settling = settle(children, world);

    let configured = match claims {
        Claims::Lost(verdict) => verdict,
        _ if settling.taken.is_empty() => Verdict::ready(CONFIGURED).with_remark(&wish.remark),
        _ => Verdict::error(CONFIGURED, reason::NAME_TAKEN, settling.taken.join("\n")),
    };
    let mut plan = told(configured, resolved(&wish, world, env));
    plan.push(CONFIGURED, false, settling.acts);
    plan
}

pub(crate) fn wakes(changed: &Changed<'_>, world: &World) -> Vec<String> {
    const KINDS: [ObjectKind; 4] = [
        // Those that claim one certificate look at each other.
        ObjectKind::SecuredAccess,
        ObjectKind::Certificate,
        ObjectKind::Secret,
        ObjectKind::Service,
    ];
    if changed.is_of(&KINDS) { all(&world.secured_accesses) } else { Vec::new() }
}

pub(crate) fn references(access: &SecuredAccess) -> Vec<(ObjectKind, String)> {
    let Some(issuer) = named(access.spec.issuer.as_deref()) else {
        return Vec::new();
    };
    [issuer, certificate_name(access)].map(|name| (ObjectKind::Secret, name.to_owned())).to_vec()
}

/// The ways in which ports are offered to other clusters that are built so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AccessType<'a> {
    Local,
    /// With the host under which the cluster's nodes are reached.
    NodePort(&'a str),
    LoadBalancer,
}

/// A spec that makes sense.
struct Wish<'a> {
    access: &'a SecuredAccess,
    name: &'a str,
    access_type: AccessType<'a>,
    ports: Vec<ServicePort>,
    /// The Secret of the CA that signs; absent where the credentials are the user's own.
    issuer: Option<&'a str>,
    remark: String,
}

impl<'a> Wish<'a> {
    fn check(access: &'a SecuredAccess, config: &'a Config) -> Result<Self, Verdict> {
        let spec = &access.spec;
        if spec.selector.is_empty() {
            let message = "spec.selector is empty: name the labels of the pods behind the ports";
            return Err(Verdict::error(CONFIGURED, reason::INVALID_OBJECT, message));
        }
        let ports = ports(access)
            .map_err(|message| Verdict::error(CONFIGURED, reason::INVALID_OBJECT, message))?;
        Ok(Self {
            access,
            name: access.metadata.name.as_deref().unwrap_or_default(),
            access_type: access_type(spec.access_type.as_deref(), config)?,
            ports,
            issuer: named(spec.issuer.as_deref()),
            remark: settings(&spec.settings, &spec.options).1,
        })
    }
}

/// The ports of the Service, or what is wrong with them.
fn ports(access: &SecuredAccess) -> Result<Vec<ServicePort>, String> {
    let mut ports: Vec<ServicePort> = Vec::new();
    for port in &access.spec.ports {
        let name = &port.name;
        let number = port.port.unwrap_or_default();
        let target = port.target_port.unwrap_or(number);
        if name.is_empty() {
            return Err(format!("port {number} has no name: give it one"));
        }
        if [number, target].iter().any(|number| !(1..=65535).contains(number)) {
            return Err(format!("port \"{name}\" is {number} to {target}: both have to be from 1 to 65535"));
        }
        let protocol = named(port.protocol.as_deref()).unwrap_or("TCP");
        let is_double = |other: &ServicePort| {
            other.name.as_ref() == Some(name)
                || other.port == number && other.protocol.as_deref() == Some(protocol)
        };
        if ports.iter().any(is_double) {
            return Err(format!("port \"{name}\" ({number}) is there twice: remove one, or give it another name and number"));
        }
        ports.push(ServicePort {
            name: Some(name.clone()),
            port: number,
            target_port: Some(IntOrString::Int(target)),
            protocol: Some(protocol.to_owned()),
            ..ServicePort::default()
        });
    }
    if ports.is_empty() {
        return Err("spec.ports is empty: name at least one port".to_owned());
    }
    Ok(ports)
}

/// What an access type means to this operator, or why it means nothing.
fn access_type<'a>(asked: Option<&str>, config: &'a Config) -> Result<AccessType<'a>, Verdict> {
    let enabled = &config.enabled_access_types;
    let is_enabled = |kind: &str| enabled.iter().any(|enabled| enabled == kind);
    let default = || match &config.default_access_type {
        Some(default) => default.as_str(),
        None if is_enabled("loadbalancer") => "loadbalancer",
        None => enabled.first().map(String::as_str).unwrap_or_default(),
    };
    let kind = named(asked).filter(|asked| *asked != "default").unwrap_or_else(default);
    let unsupported = || {
        let message = format!("unsupported access type \"{kind}\": enabled are {}", enabled.join(", "));
        Verdict::error(CONFIGURED, reason::UNSUPPORTED_ACCESS_TYPE, message)
    };
    if !is_enabled(kind) {
        return Err(unsupported());
    }
    match (kind, config.cluster_host.as_deref()) {
        ("local", _) => Ok(AccessType::Local),
        ("loadbalancer", _) => Ok(AccessType::LoadBalancer),
        ("nodeport", Some(host)) => Ok(AccessType::NodePort(host)),
        ("nodeport", None) => Err(Verdict::error(
            CONFIGURED,
            reason::CLUSTER_HOST_MISSING,
            "access type nodeport needs the name or address of a node: start the operator with --cluster-host",
        )),
        _ => Err(unsupported()),
    }
}

/// `settings` with what only its older spelling `options` says, and a remark where both say different things.
pub(crate) fn settings(
    settings: &BTreeMap<String, String>,
    options: &BTreeMap<String, String>,
) -> (BTreeMap<String, String>, String) {
    let unlike: Vec<&str> = options
        .iter()
        .filter(|(key, option)| settings.get(*key).is_some_and(|setting| setting != *option))
        .map(|(key, _)| key.as_str())
        .collect();
    let remark = match unlike.as_slice() {
        [] => String::new(),
        keys => format!("settings and options name {}, and settings win", keys.join(", ")),
    };
    let mut merged = options.clone();
    merged.extend(settings.clone());
    (merged, remark)
}

fn certificate_name(access: &SecuredAccess) -> &str {
    let own = access.metadata.name.as_deref().unwrap_or_default();
    named(access.spec.certificate.as_deref()).unwrap_or(own)
}

/// Who plans the certificate that this access wants.
enum Claims<'a> {
    /// None is wanted.
    None,
    /// This access does, for itself and for those who agree with it.
    Planner(Vec<Wish<'a>>),
    /// An older one does, for this one too.
    Planned,
    /// An older one does, and they do not agree.
    Lost(Verdict),
}

fn claims<'a>(wish: &Wish<'_>, world: &'a World, config: &'a Config) -> Claims<'a> {
    let Some(issuer) = wish.issuer else {
        return Claims::None;
    };
    let wanted = certificate_name(wish.access);
    let mut claimants: Vec<Wish<'_>> = world
        .secured_accesses
        .fitting()
        .filter(|other| other.metadata.deletion_timestamp.is_none())
        .filter_map(|other| Wish::check(other, config).ok())
        .filter(|other| other.issuer.is_some() && certificate_name(other.access) == wanted)
        .collect();
    claimants.sort_by_key(|claimant| seniority(&claimant.access.metadata));
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

fn service(wish: &Wish<'_>) -> Child {
    let kind = match wish.access_type {
        AccessType::Local => "ClusterIP",
        AccessType::NodePort(_) => "NodePort",
        AccessType::LoadBalancer => "LoadBalancer",
    };
    let mut labels = labels::ours();
    labels.insert(labels::SECURED_ACCESS.to_owned(), "true".to_owned());
    let service = Service {
        metadata: ObjectMeta {
            name: Some(wish.name.to_owned()),
            namespace: wish.access.metadata.namespace.clone(),
            labels: Some(labels),
            annotations: Some(labels::map([(labels::CONTROLLED, "true")])),
            owner_references: Some(vec![names::owner(wish.access)]),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            type_: Some(kind.to_owned()),
            selector: Some(wish.access.spec.selector.clone()),
            ports: Some(wish.ports.clone()),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    };
    child(ObjectKind::Service, &service)
}

/// The certificate for all who claim it.
fn certificate(wish: &Wish<'_>, claimants: &[Wish<'_>], world: &World) -> Child {
    let name = certificate_name(wish.access);
    // The subject is that of whoever planned it first: another one would cost a new key for nothing.
    let subject = world
        .certificates
        .get(name)
        .and_then(crate::seen::Seen::fits)
        .map(|live| live.spec.subject.as_str())
        .filter(|subject| claimants.iter().any(|claimant| claimant.name == *subject))
        .unwrap_or(wish.name);
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
    certificate.metadata.namespace.clone_from(&wish.access.metadata.namespace);
    certificate.metadata.labels = Some(labels);
    certificate.metadata.annotations = Some(annotations);
    certificate.metadata.owner_references =
        Some(claimants.iter().map(|claimant| names::owner(claimant.access)).collect());
    child(ObjectKind::Certificate, &certificate)
}

/// What a claimant's certificate has to be good for: the names inside the cluster, those that its RouterAccess adds, and
/// the addresses known so far. While none is known, those that were are kept: they may be back in a moment.
fn certificate_hosts(wish: &Wish<'_>, world: &World) -> BTreeSet<String> {
    let namespace = wish.access.metadata.namespace.as_deref().unwrap_or_default();
    let mut wanted = vec![wish.name.to_owned(), format!("{}.{namespace}", wish.name)];
    let annotations = wish.access.metadata.annotations.as_ref();
    if let Some(more) = annotations.and_then(|map| map.get(labels::HOSTS)) {
        wanted.extend(more.split(',').map(str::to_owned));
    }
    if let AccessType::NodePort(host) = wish.access_type {
        wanted.push(host.to_owned());
    }
    let known = endpoints(wish, world);
    let offered = if known.is_empty() { published(wish.access) } else { &known };
    wanted.extend(offered.iter().map(|endpoint| endpoint.host.clone()));
    hosts(&wanted)
}

/// Where the ports are reached, as far as the platform has said by now.
fn endpoints(wish: &Wish<'_>, world: &World) -> Vec<Endpoint> {
    let Some(live) = world
        .services
        .get(wish.name)
        .filter(|service| owns(&wish.access.metadata, &service.metadata))
    else {
        return Vec::new();
    };
    let namespace = wish.access.metadata.namespace.as_deref().unwrap_or_default();
    let at = |host: String, port: &ServicePort, number: i32| Endpoint {
        name: port.name.clone().unwrap_or_default(),
        host,
        port: number.to_string(),
        group: String::new(),
    };
    match wish.access_type {
        AccessType::Local => wish
            .ports
            .iter()
            .map(|port| at(format!("{}.{namespace}", wish.name), port, port.port))
            .collect(),
        AccessType::NodePort(host) => wish
            .ports
            .iter()
            .filter_map(|port| Some(at(canonical(host), port, node_port(live, port)?)))
            .collect(),
        AccessType::LoadBalancer => ingress_hosts(live)
            .iter()
            .flat_map(|host| wish.ports.iter().map(move |port| at(host.clone(), port, port.port)))
            .collect(),
    }
}

fn node_port(live: &Service, wanted: &ServicePort) -> Option<i32> {
    let ports = live.spec.as_ref()?.ports.as_ref()?;
    ports
        .iter()
        .find(|port| port.name == wanted.name && port.port == wanted.port)?
        .node_port
        .filter(|number| *number > 0)
}

fn ingress_hosts(live: &Service) -> Vec<String> {
    let status = live.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    status
        .and_then(|balancer| balancer.ingress.as_ref())
        .into_iter()
        .flatten()
        .filter_map(|ingress| named(ingress.ip.as_deref()).or(named(ingress.hostname.as_deref())))
        .map(canonical)
        .collect()
}

/// A host as it stands in certificates.
fn canonical(host: &str) -> String {
    hosts(&[host.to_owned()]).pop_first().unwrap_or_default()
}

/// What is published: the addresses that the stored certificate is good for, so that nobody who dials one of them is
/// turned away. What was published stays until something better is there.
fn resolved(wish: &Wish<'_>, world: &World, env: &Env<'_>) -> (Verdict, Vec<Endpoint>) {
    let known = endpoints(wish, world);
    let before = published(wish.access);
    if known.is_empty() {
        return (awaited(wish), before.to_vec());
    }
    let Some(issuer) = wish.issuer else {
        return (Verdict::ready(RESOLVED), known);
    };
    let secret = certificate_name(wish.access);
    let credentials = credential::usable(world, secret, env.now);
    let covers = |endpoint: &Endpoint| {
        let certificate = credentials.as_ref().ok().and_then(|facts| facts.certificate());
        certificate.is_some_and(|certificate| certificate.covers(&endpoint.host))
    };
    let (covered, bare): (Vec<Endpoint>, Vec<Endpoint>) = known.into_iter().partition(covers);
    let Some(first) = bare.first() else {
        return (Verdict::ready(RESOLVED), covered);
    };
    let verdict = match &credentials {
        Ok(facts) => uncovered(secret, facts, &first.host, world),
        Err(fault) => uncertified(fault, world, issuer, env),
    };
    let kept = bare.into_iter().filter(|endpoint| before.contains(endpoint));
    let offered: Vec<Endpoint> = covered.into_iter().chain(kept).collect();
    (verdict, if offered.is_empty() { before.to_vec() } else { offered })
}

/// Why a certificate is not good for a host: most likely because the next one is on its way.
fn uncovered(secret: &str, facts: &SecretFacts, host: &str, world: &World) -> Verdict {
    let is_foreign = world
        .certificates
        .get(secret)
        .is_some_and(|certificate| !owns(certificate.metadata(), &facts.metadata));
    if is_foreign {
        let message = format!(
            "secret \"{secret}\" exists but is not controlled by skupper, and its certificate is not good for {host}: delete it, or bring one that is"
        );
        return Verdict::error(RESOLVED, reason::NAME_TAKEN, message);
    }
    let message = format!("waiting until the certificate of secret \"{secret}\" is good for {host}");
    Verdict::pending(RESOLVED, reason::PENDING, message)
}

/// Why there is no certificate: most likely because nobody can sign it.
fn uncertified(fault: &Fault, world: &World, issuer: &str, env: &Env<'_>) -> Verdict {
    match credential::signing(world, issuer, env.now) {
        Err(lost) => Verdict::pending(RESOLVED, lost.reason, lost.message),
        Ok(_) => Verdict::pending(RESOLVED, fault.reason, fault.message.clone()),
    }
}

fn awaited(wish: &Wish<'_>) -> Verdict {
    let (reason, message) = match wish.access_type {
        AccessType::LoadBalancer => (
            reason::AWAITING_ADDRESS,
            format!("waiting for the load balancer to give Service \"{}\" an address", wish.name),
        ),
        AccessType::NodePort(_) => {
            (reason::AWAITING_ADDRESS, format!("waiting for the node ports of Service \"{}\"", wish.name))
        }
        AccessType::Local => (reason::PENDING, format!("waiting for Service \"{}\"", wish.name)),
    };
    Verdict::pending(RESOLVED, reason, message)
}

fn published(access: &SecuredAccess) -> &[Endpoint] {
    access.status.as_ref().map_or(&[], |status| status.endpoints.as_slice())
}

/// What is true of the addresses while the spec says nothing that could be followed.
fn still_resolved(access: &SecuredAccess) -> (Verdict, Vec<Endpoint>) {
    let before = published(access).to_vec();
    let verdict = if before.is_empty() {
        Verdict::pending(RESOLVED, reason::PENDING, "Pending")
    } else {
        Verdict::ready(RESOLVED)
    };
    (verdict, before)
}

fn told(configured: Verdict, (resolved, endpoints): (Verdict, Vec<Endpoint>)) -> Plan {
    Plan::only(Status {
        verdicts: vec![configured, resolved],
        sum_of: &[CONFIGURED, RESOLVED],
        fields: Map::from_iter([("endpoints".to_owned(), listed(&endpoints))]),
        ..Status::default()
    })
}

/// The value of a status' `endpoints`: none is no list.
pub(crate) fn listed(endpoints: &[Endpoint]) -> Value {
    if endpoints.is_empty() { Value::Null } else { json!(endpoints) }
}
