//! What do the objects of a namespace ask of its routers, and which of them cannot have it?
//!
//! Names are unique in a router over all types of entities (`facts/router.md` §3), and a document with two of one
//! name is refused whole: so clashes are found here, and cost the younger claim only.

use std::collections::{BTreeMap, BTreeSet};

use spanwire_api::condition::CONFIGURED;
use spanwire_api::link::reason;
use spanwire_api::{Link, RouterAccess};
use spanwire_router::entity::{Connector, Listener, Role};

use crate::plan::Verdict;
use crate::router_access;
use crate::world::{World, seniority};
use crate::{link, names};

/// The plain listener on the loopback interface, by which the adaptor manages the router.
pub(crate) const AMQP: &str = "amqp";
/// The listener for clients inside the namespace.
pub(crate) const AMQPS: &str = "amqps";
/// The listener for probes and metrics.
pub(crate) const HTTP: &str = "@9090";

/// The claims on the routers of one site, as far as they can stand side by side.
#[derive(Debug, Default)]
pub(crate) struct Claims<'w> {
    /// The Secret of each profile.
    pub(crate) secrets: BTreeMap<String, &'w str>,
    /// The profiles in the order in which they are heard, should there be too little room.
    pub(crate) order: Vec<String>,
    /// What the routers listen to for other sites.
    pub(crate) listeners: Vec<Listener>,
    /// By Link: its connector, or why it has none.
    pub(crate) connectors: BTreeMap<&'w str, Result<Connector, Verdict>>,
    /// With `ha`: how the second router reaches the first.
    pub(crate) peer: Option<Connector>,
    /// What a RouterAccess asked for and did not get, in sentences.
    pub(crate) clashes: Vec<String>,
    names: BTreeSet<String>,
}

impl<'w> Claims<'w> {
    /// All claims of this World, on routers of this mode.
    pub(crate) fn of(world: &'w World, edge: bool, ha: bool) -> Self {
        let fixed = [AMQP, AMQPS, HTTP].map(str::to_owned);
        let mut claims = Self {
            names: fixed.into_iter().collect(),
            ..Self::default()
        };
        claims.profile(names::LOCAL_SERVER.to_owned(), names::LOCAL_SERVER);
        for access in by_age(world.router_accesses.fitting(), |access| &access.metadata) {
            claims.access(access, world, ha);
        }
        let mut targets = BTreeMap::new();
        for link in by_age(world.links.fitting(), |link| &link.metadata) {
            let name = link.metadata.name.as_deref().unwrap_or_default();
            let connector = claims.link(name, link, edge, &mut targets);
            claims.connectors.insert(name, connector);
        }
        claims
    }

    fn access(&mut self, access: &'w RouterAccess, world: &World, ha: bool) {
        let name = access.metadata.name.as_deref().unwrap_or_default();
        let secret = access.spec.tls_credentials.as_str();
        let roles = router_access::listeners(access, world);
        if roles.is_empty() || secret.is_empty() {
            return;
        }
        if !self.profile(secret.to_owned(), secret) {
            self.clashes.push(clash("RouterAccess", name, secret));
            return;
        }
        for (role, port) in roles {
            let listener = names::listener(name, &role);
            if !self.names.insert(listener.clone()) {
                self.clashes.push(clash("RouterAccess", name, &listener));
                continue;
            }
            let role = role_of(&role);
            if ha && role == Role::InterRouter {
                self.meet(name, port, secret);
            }
            self.listeners.push(Listener {
                name: listener,
                role,
                host: access
                    .spec
                    .bind_host
                    .clone()
                    .filter(|host| !host.is_empty()),
                port,
                ssl_profile: Some(secret.to_owned()),
                sasl_mechanisms: Some("EXTERNAL".to_owned()),
                authenticate_peer: Some(true),
                ..Listener::default()
            });
        }
    }

    /// Lets the second router dial the first through the Service of the oldest access that takes routers. Upstream
    /// dials `skupper-router` whatever the access is called; with the default access that is the same.
    fn meet(&mut self, access: &str, port: u16, profile: &str) {
        if self.peer.is_some() || !self.names.insert(names::ROUTER.to_owned()) {
            return;
        }
        self.peer = Some(Connector {
            name: names::ROUTER.to_owned(),
            role: Role::InterRouter,
            host: names::secured_access(access, names::ROUTER),
            port,
            cost: Some(1),
            ssl_profile: Some(profile.to_owned()),
            ..Connector::default()
        });
    }

    fn link(
        &mut self,
        name: &str,
        link: &'w Link,
        edge: bool,
        targets: &mut BTreeMap<(String, u16), &'w str>,
    ) -> Result<Connector, Verdict> {
        let connector = link::connector(link, edge)?;
        let target = (connector.host.to_ascii_lowercase(), connector.port);
        if let Some(older) = targets.get(&target) {
            let message = format!(
                "Link \"{older}\" already goes to {}:{}, and a router keeps one connection to a place: delete either",
                connector.host, connector.port
            );
            return Err(Verdict::error(
                CONFIGURED,
                reason::DUPLICATE_TARGET,
                message,
            ));
        }
        let taken =
            |what: &str| Verdict::error(CONFIGURED, reason::NAME_TAKEN, clash("Link", name, what));
        let secret = link.spec.tls_credentials.as_deref().unwrap_or_default();
        let profile = names::link_profile(secret);
        if self.names.contains(name) || name == profile {
            return Err(taken(name));
        }
        if !self.profile(profile.clone(), secret) {
            return Err(taken(&profile));
        }
        self.names.insert(name.to_owned());
        targets.insert(target, link.metadata.name.as_deref().unwrap_or_default());
        Ok(connector)
    }

    /// Claims a profile. Several may claim one, if they mean the same Secret.
    fn profile(&mut self, profile: String, secret: &'w str) -> bool {
        if let Some(claimed) = self.secrets.get(&profile) {
            return *claimed == secret;
        }
        let is_free = self.names.insert(profile.clone());
        if is_free {
            self.order.push(profile.clone());
            self.secrets.insert(profile, secret);
        }
        is_free
    }
}

fn clash(kind: &str, name: &str, entity: &str) -> String {
    format!(
        "{kind} \"{name}\" needs the name \"{entity}\" in the router, where something else has it: rename the {kind} or \
         its credentials"
    )
}

/// The role of a RouterAccess as the router knows it.
fn role_of(role: &str) -> Role {
    match role {
        "inter-router" => Role::InterRouter,
        "edge" => Role::Edge,
        _ => Role::Normal,
    }
}

/// The objects that are to stay, the oldest first.
fn by_age<'w, K>(
    objects: impl Iterator<Item = &'w K>,
    metadata: impl Fn(&'w K) -> &'w k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
) -> Vec<&'w K> {
    let mut objects: Vec<&K> = objects
        .filter(|object| metadata(object).deletion_timestamp.is_none())
        .collect();
    objects.sort_by_key(|object| seniority(metadata(object)));
    objects
}
