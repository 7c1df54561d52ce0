//! Which roles may a RouterAccess have the routers play, and on which ports?

use spanwire_api::RouterAccess;
use spanwire_api::router_access::reason;

use super::own_secured_access;
use crate::credential::Fault;
use crate::names;
use crate::site::is_edge;
use crate::world::{World, seniority};

/// Ports that the router pod uses itself: the router's AMQPS and AMQP, its adaptor's and its own metrics and health.
const RESERVED: [u16; 5] = [5671, 5672, 9000, 9090, 9191];

/// What became of the roles that a spec asks for.
#[derive(Default)]
pub(super) struct Roles {
    /// In the order of the spec.
    pub(super) accepted: Vec<(String, u16)>,
    pub(super) refused: Vec<Fault>,
}

/// Heard by seniority, so that a newcomer never takes a port away from anybody.
pub(super) fn roles(access: &RouterAccess, world: &World) -> Roles {
    let mut elders: Vec<&RouterAccess> = world
        .router_accesses
        .fitting()
        .filter(|other| other.metadata.deletion_timestamp.is_none())
        .filter(|other| seniority(&other.metadata) < seniority(&access.metadata))
        .collect();
    elders.sort_by_key(|elder| seniority(&elder.metadata));
    let mut taken: Vec<(u16, &str)> = Vec::new();
    for elder in elders {
        let ports = roles_beside(elder, &taken, world)
            .accepted
            .into_iter()
            .map(|(_, port)| port);
        let name = elder.metadata.name.as_deref().unwrap_or_default();
        let ports: Vec<(u16, &str)> = ports.map(|port| (port, name)).collect();
        taken.extend(ports);
    }
    roles_beside(access, &taken, world)
}

/// The roles of an access where some ports are taken. A role whose port is refused keeps the one that it had: the last
/// good state stays in force.
fn roles_beside(access: &RouterAccess, taken: &[(u16, &str)], world: &World) -> Roles {
    let is_edge = world.site().is_some_and(is_edge);
    let mut roles = Roles::default();
    if access.spec.roles.is_empty() {
        let message = "spec.roles is empty: name at least one of inter-router, edge and normal";
        roles.refused.push(fault(reason::INVALID_OBJECT, message));
    }
    for role in &access.spec.roles {
        let name = &role.name;
        if !["inter-router", "edge", "normal"].contains(&name.as_str()) {
            let message =
                format!("unknown role \"{name}\": a router knows inter-router, edge and normal");
            roles.refused.push(fault(reason::UNKNOWN_ROLE, message));
            continue;
        }
        if is_edge && name != "normal" {
            let message = format!(
                "role \"{name}\": edge sites cannot accept incoming links from remote sites"
            );
            roles.refused.push(fault(reason::EDGE_SITE, message));
            continue;
        }
        if roles.accepted.iter().any(|(other, _)| other == name) {
            let message = format!(
                "role \"{name}\" is there twice: remove one, or put it into a RouterAccess of its own"
            );
            roles.refused.push(fault(reason::INVALID_OBJECT, message));
            continue;
        }
        let is_free = |port: u16| free(name, port, &roles.accepted, taken);
        match wanted_port(name, role.port).and_then(|port| is_free(port).map(|()| port)) {
            Ok(port) => roles.accepted.push((name.clone(), port)),
            Err(refusal) => {
                let kept = port_in_force(access, name, world).filter(|port| is_free(*port).is_ok());
                roles.accepted.extend(kept.map(|port| (name.clone(), port)));
                roles.refused.push(refusal);
            }
        }
    }
    roles
}

fn wanted_port(role: &str, port: Option<i32>) -> Result<u16, Fault> {
    let default = match role {
        "inter-router" => 55671,
        "edge" => 45671,
        _ => 5671,
    };
    let port = port.unwrap_or(default);
    u16::try_from(port)
        .ok()
        .filter(|port| *port > 0)
        .ok_or_else(|| {
            let message = format!("role \"{role}\" has port {port}: it has to be from 1 to 65535");
            fault(reason::INVALID_OBJECT, message)
        })
}

fn free(role: &str, port: u16, own: &[(String, u16)], taken: &[(u16, &str)]) -> Result<(), Fault> {
    if RESERVED.contains(&port) {
        let message = format!(
            "role \"{role}\" has port {port}, which the router pod uses itself: give it another one"
        );
        return Err(fault(reason::PORT_RESERVED, message));
    }
    if let Some((other, _)) = own.iter().find(|(_, other)| *other == port) {
        let message = format!(
            "role \"{role}\" has port {port}, and so has role \"{other}\": change one of them"
        );
        return Err(fault(reason::DUPLICATE_PORT, message));
    }
    if let Some((_, other)) = taken.iter().find(|(other, _)| *other == port) {
        let message = format!(
            "role \"{role}\" has port {port}, which RouterAccess \"{other}\" has: change either"
        );
        return Err(fault(reason::DUPLICATE_PORT, message));
    }
    Ok(())
}

fn fault(reason: &'static str, message: impl Into<String>) -> Fault {
    Fault {
        reason,
        message: message.into(),
    }
}

/// The port that this access' SecuredAccess offers for a role by now.
fn port_in_force(access: &RouterAccess, role: &str, world: &World) -> Option<u16> {
    let live = own_secured_access(access, names::ROUTER, world)?;
    let port = live
        .spec
        .ports
        .iter()
        .find(|port| port.name == role)?
        .port?;
    u16::try_from(port).ok().filter(|port| *port > 0)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::jiff::Timestamp;
    use spanwire_api::{RouterAccessRole, RouterAccessSpec};

    use super::*;
    use crate::seen::Seen;

    /// An access of this age with these roles.
    fn access(name: &str, born: i64, roles: &[(&str, Option<i32>)]) -> RouterAccess {
        let role = |(name, port): &(&str, Option<i32>)| RouterAccessRole {
            name: (*name).to_owned(),
            port: *port,
        };
        let mut access = RouterAccess::new(
            name,
            RouterAccessSpec {
                roles: roles.iter().map(role).collect(),
                tls_credentials: "server".to_owned(),
                ..RouterAccessSpec::default()
            },
        );
        access.metadata.creation_timestamp = Timestamp::from_second(born).ok().map(Time);
        access
    }

    fn world(accesses: &[&RouterAccess]) -> World {
        let mut world = World::default();
        for access in accesses {
            world.router_accesses.insert(Seen::Fits((*access).clone()));
        }
        world
    }

    fn reasons(roles: &Roles) -> Vec<&'static str> {
        roles.refused.iter().map(|fault| fault.reason).collect()
    }

    #[test]
    fn a_newcomer_never_takes_a_port_away() {
        let elder = access("z", 1, &[("inter-router", None)]);
        let younger = access("a", 2, &[("edge", Some(55671)), ("inter-router", Some(1))]);
        let world = world(&[&younger, &elder]);
        let roles = roles(&younger, &world);
        assert_eq!(roles.accepted, [("inter-router".to_owned(), 1)]);
        assert_eq!(reasons(&roles), [reason::DUPLICATE_PORT]);
        assert!(super::roles(&elder, &world).refused.is_empty());
    }

    #[test]
    fn what_an_elder_does_not_get_is_free() {
        let first = access("a", 1, &[("edge", Some(7))]);
        let second = access("b", 2, &[("edge", Some(7)), ("normal", Some(8))]);
        let third = access("c", 3, &[("edge", Some(8)), ("inter-router", Some(7))]);
        let world = world(&[&first, &second, &third]);
        assert_eq!(roles(&second, &world).accepted, [("normal".to_owned(), 8)]);
        assert!(roles(&third, &world).accepted.is_empty());
    }

    #[test]
    fn two_roles_of_one_access_need_two_ports() {
        let access = access("a", 1, &[("edge", Some(7)), ("inter-router", Some(7))]);
        let roles = roles(&access, &world(&[&access]));
        assert_eq!(roles.accepted, [("edge".to_owned(), 7)]);
        assert_eq!(reasons(&roles), [reason::DUPLICATE_PORT]);
    }

    #[test]
    fn each_port_that_the_pod_uses_is_refused() {
        for port in RESERVED {
            let access = access("a", 1, &[("normal", Some(i32::from(port)))]);
            let roles = roles(&access, &world(&[&access]));
            assert_eq!(reasons(&roles), [reason::PORT_RESERVED], "{port}");
        }
    }
}
