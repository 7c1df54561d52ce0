//! Does an entity of the router have what is wanted of it?

use crate::attribute::flag_of;
use crate::entity::{Connector, Entity, Listener, SslProfile};
use serde_json::{Map, Value};

/// Whether a live entity is what is wanted: an attribute with a known default counts as that when
/// it is absent, any other is compared only where it is wanted, and nothing that the router adds by
/// itself is looked at.
pub fn matches(wanted: &Entity, live: &Entity) -> bool {
    match (wanted, live) {
        (Entity::SslProfile(wanted), Entity::SslProfile(live)) => profile_matches(wanted, live),
        (Entity::Connector(wanted), Entity::Connector(live)) => connector_matches(wanted, live),
        (Entity::Listener(wanted), Entity::Listener(live)) => listener_matches(wanted, live),
        _ => wanted == live,
    }
}

fn profile_matches(wanted: &SslProfile, live: &SslProfile) -> bool {
    let SslProfile {
        name,
        ca_cert_file,
        cert_file,
        private_key_file,
        ordinal,
        oldest_valid_ordinal,
        protocols,
        ciphers,
        other,
    } = wanted;
    *name == live.name
        && text(ca_cert_file.as_ref()) == text(live.ca_cert_file.as_ref())
        && text(cert_file.as_ref()) == text(live.cert_file.as_ref())
        && text(private_key_file.as_ref()) == text(live.private_key_file.as_ref())
        && agrees(*ordinal, Some(live.ordinal.unwrap_or(0)))
        && agrees(
            *oldest_valid_ordinal,
            Some(live.oldest_valid_ordinal.unwrap_or(0)),
        )
        && text(protocols.as_ref()) == text(live.protocols.as_ref())
        && text(ciphers.as_ref()) == text(live.ciphers.as_ref())
        && contains(&live.other, other)
}

fn connector_matches(wanted: &Connector, live: &Connector) -> bool {
    let Connector {
        name,
        role,
        host,
        port,
        cost,
        ssl_profile,
        verify_hostname,
        other,
    } = wanted;
    *name == live.name
        && *role == live.role
        && *host == live.host
        && *port == live.port
        && cost.unwrap_or(1) == live.cost.unwrap_or(1)
        && text(ssl_profile.as_ref()) == text(live.ssl_profile.as_ref())
        && verify_hostname.unwrap_or(true) == live.verify_hostname.unwrap_or(true)
        && contains(&live.other, other)
}

fn listener_matches(wanted: &Listener, live: &Listener) -> bool {
    let Listener {
        name,
        role,
        host,
        port,
        cost,
        ssl_profile,
        sasl_mechanisms,
        authenticate_peer,
        http,
        http_root_dir,
        websockets,
        healthz,
        metrics,
        other,
    } = wanted;
    *name == live.name
        && *role == live.role
        && text(host.as_ref()) == text(live.host.as_ref())
        && *port == live.port
        && cost.unwrap_or(1) == live.cost.unwrap_or(1)
        && text(ssl_profile.as_ref()) == text(live.ssl_profile.as_ref())
        && text(sasl_mechanisms.as_ref()) == text(live.sasl_mechanisms.as_ref())
        && authenticate_peer.unwrap_or(false) == live.authenticate_peer.unwrap_or(false)
        && http.unwrap_or(false) == live.http.unwrap_or(false)
        && agrees(http_root_dir.as_ref(), live.http_root_dir.as_ref())
        && agrees(*websockets, live.websockets)
        && agrees(*healthz, live.healthz)
        && agrees(*metrics, live.metrics)
        && contains(&live.other, other)
}

/// What is not wanted is not compared.
fn agrees<T: PartialEq + Copy>(wanted: Option<T>, live: Option<T>) -> bool {
    wanted.is_none() || wanted == live
}

/// Absent and empty text are one.
fn text(value: Option<&String>) -> &str {
    value.map_or("", String::as_str)
}

/// Whether attributes that no field knows are as wanted, a number and its text being one, and a
/// boolean and its word.
fn contains(live: &Map<String, Value>, wanted: &Map<String, Value>) -> bool {
    fn spelled(value: &Value) -> String {
        value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned)
    }
    wanted
        .iter()
        .filter(|(_, value)| !value.is_null())
        .all(|(attribute, value)| {
            live.get(attribute).is_some_and(|live| match live {
                Value::Bool(live) => flag_of(value) == Some(*live),
                live => spelled(live) == spelled(value),
            })
        })
}
