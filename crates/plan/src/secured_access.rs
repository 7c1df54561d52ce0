//! SecuredAccess → Service and Certificate: under which addresses are some pods reached, and is it safe to say so?

mod address;
mod claim;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Map, Value, json};
use spanwire_api::condition::{CONFIGURED, RESOLVED};
use spanwire_api::secured_access::reason;
use spanwire_api::{Endpoint, SecuredAccess};

use crate::env::{Config, Env};
use crate::kinds::{Changed, all};
use crate::plan::{Child, ObjectKind, Plan, Status, Verdict};
use crate::settle::{child, settle};
use crate::world::{World, named};
use crate::{credential, labels, names};
use address::{resolved, still_resolved};
use claim::{Claims, certificate, claims, surplus};

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
    let mut acts = settling.acts;
    acts.extend(surplus(&wish, world));

    let configured = match claims {
        Claims::Lost(verdict) => verdict,
        _ if settling.taken.is_empty() => Verdict::ready(CONFIGURED).with_remark(&wish.remark),
        _ => Verdict::error(CONFIGURED, reason::NAME_TAKEN, settling.taken.join("\n")),
    };
    let mut plan = told(configured, resolved(&wish, world, env));
    plan.push(CONFIGURED, false, acts);
    let judged = shown(access).into_iter().chain(wish.issuer);
    credential::judge_again(&mut plan, judged, world, env.now);
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
    if changed.is_of(&KINDS) {
        all(&world.secured_accesses)
    } else {
        Vec::new()
    }
}

pub(crate) fn references(access: &SecuredAccess) -> Vec<(ObjectKind, String)> {
    shown(access)
        .into_iter()
        .chain(named(access.spec.issuer.as_deref()))
        .map(|name| (ObjectKind::Secret, name.to_owned()))
        .collect()
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
        if [number, target]
            .iter()
            .any(|number| !(1..=65535).contains(number))
        {
            return Err(format!(
                "port \"{name}\" is {number} to {target}: both have to be from 1 to 65535"
            ));
        }
        let protocol = named(port.protocol.as_deref()).unwrap_or("TCP");
        let is_double = |other: &ServicePort| {
            other.name.as_ref() == Some(name)
                || other.port == number && other.protocol.as_deref() == Some(protocol)
        };
        if ports.iter().any(is_double) {
            return Err(format!(
                "port \"{name}\" ({number}) is there twice: remove one, or give it another name and number"
            ));
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
    let kind = named(asked)
        .filter(|asked| *asked != "default")
        .unwrap_or_else(default);
    let unsupported = || {
        let message = format!(
            "unsupported access type \"{kind}\": enabled are {}",
            enabled.join(", ")
        );
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
        keys => format!(
            "settings and options name {}, and settings win",
            keys.join(", ")
        ),
    };
    let mut merged = options.clone();
    merged.extend(settings.clone());
    (merged, remark)
}

fn certificate_name(access: &SecuredAccess) -> &str {
    let own = access.metadata.name.as_deref().unwrap_or_default();
    named(access.spec.certificate.as_deref()).unwrap_or(own)
}

/// The Secret whose certificate the pods show: one that is issued for them, or one that its user brings, if he names it.
fn shown(access: &SecuredAccess) -> Option<&str> {
    match named(access.spec.issuer.as_deref()) {
        Some(_) => Some(certificate_name(access)),
        None => named(access.spec.certificate.as_deref()),
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
    if endpoints.is_empty() {
        Value::Null
    } else {
        json!(endpoints)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(enabled: &[&str], default: Option<&str>) -> Config {
        Config {
            enabled_access_types: enabled.iter().map(|kind| (*kind).to_owned()).collect(),
            default_access_type: default.map(str::to_owned),
            cluster_host: Some("node.example".to_owned()),
            ..Config::default()
        }
    }

    #[test]
    fn an_absent_access_type_is_the_operators_default() {
        let both = config(&["local", "loadbalancer"], None);
        let local = config(&["local", "nodeport"], None);
        let node_port = config(&["local", "nodeport"], Some("nodeport"));
        for asked in [None, Some(""), Some("default")] {
            assert_eq!(access_type(asked, &both), Ok(AccessType::LoadBalancer));
            assert_eq!(access_type(asked, &local), Ok(AccessType::Local));
            assert_eq!(
                access_type(asked, &node_port),
                Ok(AccessType::NodePort("node.example"))
            );
        }
    }

    #[test]
    fn what_is_not_enabled_or_not_built_is_unsupported_and_says_what_is() {
        let config = config(&["local", "gateway"], None);
        for asked in ["nodeport", "gateway", "teleport"] {
            let verdict = access_type(Some(asked), &config).unwrap_err();
            assert_eq!(verdict.reason, reason::UNSUPPORTED_ACCESS_TYPE);
            assert!(
                verdict.message.starts_with("unsupported access type"),
                "{verdict:?}"
            );
            assert!(verdict.message.ends_with("local, gateway"), "{verdict:?}");
        }
    }

    #[test]
    fn settings_win_over_their_older_spelling() {
        let new = labels::map([("a", "new"), ("b", "same")]);
        let old = labels::map([("a", "old"), ("b", "same"), ("c", "only old")]);
        let (merged, remark) = settings(&new, &old);
        assert_eq!(
            merged,
            labels::map([("a", "new"), ("b", "same"), ("c", "only old")])
        );
        assert_eq!(remark, "settings and options name a, and settings win");
        assert_eq!(settings(&new, &new).1, "");
    }
}
