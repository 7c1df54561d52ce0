//! What are the routers told?
//!
//! Two documents a router: `bootstrap.json`, without TLS, which always starts; and `skrouterd.json`, the whole of
//! it, which the adaptor applies. The second names only profiles of the credentials that it is planned with: so a
//! stored configuration names only stored credentials.

use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::json;
use spanwire_router::config::{BOOTSTRAP_FILE, CONFIG_FILE, Document};
use spanwire_router::entity::{
    Address, Connector, Entity, Listener, Log, Mode, Role, Router, SslProfile,
};

use crate::env::Env;
use crate::plan::{Child, Content, ObjectKind};
use crate::settle::child;
use crate::site::claims::{AMQP, AMQPS, Claims, HTTP};
use crate::site::credentials::Credentials;
use crate::site::shape::Shape;
use crate::{labels, names};

/// Where upstream's adaptor puts credentials. Ours has paths of its own and ignores these: they stand in the document
/// for a takeover.
const CERTIFICATES: &str = "/etc/skupper-router-certs";

/// What the router process itself reads when it starts.
pub(crate) fn bootstrap(shape: &Shape<'_>, env: &Env<'_>) -> Document {
    let router = Router {
        // The image's start script expands the variable.
        id: format!("{}-${{HOSTNAME}}", shape.name),
        mode: if shape.edge {
            Mode::Edge
        } else {
            Mode::Interior
        },
        hello_max_age_seconds: Some("3".to_owned()),
        data_connection_count: shape.data_connections.map(str::to_owned),
        metadata: Some(
            json!({"id": shape.uid, "version": env.config.version, "platform": "kubernetes"})
                .to_string(),
        ),
        ..Router::default()
    };
    let amqp = Listener {
        name: AMQP.to_owned(),
        role: Role::Normal,
        // Not `localhost`: that needs a resolver.
        host: Some("127.0.0.1".to_owned()),
        port: 5672,
        ..Listener::default()
    };
    let http = Listener {
        name: HTTP.to_owned(),
        role: Role::Normal,
        port: 9090,
        http: Some(true),
        http_root_dir: Some("disabled".to_owned()),
        healthz: Some(true),
        metrics: Some(true),
        ..Listener::default()
    };
    let multicast = Address {
        prefix: "mc".to_owned(),
        distribution: "multicast".to_owned(),
        ..Address::default()
    };
    let logs = shape.logging.iter().map(|(module, enable)| {
        Entity::Log(Log {
            module: module.clone(),
            enable: enable.clone(),
            ..Log::default()
        })
    });
    let fixed = [
        Entity::Router(router),
        Entity::Listener(amqp),
        Entity::Listener(http),
        Entity::Address(multicast),
    ];
    Document {
        entities: fixed.into_iter().chain(logs).collect(),
    }
}

/// What the router of a group should be like in the end.
pub(crate) fn document(
    group: &str,
    bootstrap: &Document,
    claims: &Claims<'_>,
    credentials: &Credentials,
) -> Document {
    let amqps = Listener {
        name: AMQPS.to_owned(),
        role: Role::Normal,
        port: 5671,
        ssl_profile: Some(names::LOCAL_SERVER.to_owned()),
        sasl_mechanisms: Some("EXTERNAL".to_owned()),
        authenticate_peer: Some(true),
        ..Listener::default()
    };
    let peer = claims.peer.iter().filter(|_| group == names::ROUTER_2);
    let links = claims
        .connectors
        .values()
        .filter_map(|connector| connector.as_ref().ok());
    let listeners = [&amqps]
        .into_iter()
        .chain(&claims.listeners)
        .cloned()
        .map(Entity::Listener);
    let connectors = peer.chain(links).cloned().map(Entity::Connector);
    let users = listeners.chain(connectors).filter(|user: &Entity| {
        user.ssl_profile()
            .is_some_and(|profile| credentials.has(profile))
    });
    let mut document = bootstrap.clone();
    document.entities.extend(users);
    let profiles: Vec<Entity> = document.profile_names().into_iter().map(profile).collect();
    document.entities.extend(profiles);
    document
}

fn profile(name: &str) -> Entity {
    let path = |file: &str| Some(format!("{CERTIFICATES}/{name}/{file}"));
    Entity::SslProfile(SslProfile {
        name: name.to_owned(),
        ca_cert_file: path("ca.crt"),
        cert_file: path("tls.crt"),
        private_key_file: path("tls.key"),
        ..SslProfile::default()
    })
}

/// The ConfigMap of a group.
pub(crate) fn config_map(
    group: &str,
    shape: &Shape<'_>,
    bootstrap: &Document,
    document: &Document,
) -> Child {
    let mut metadata = shape.metadata(group);
    metadata
        .labels
        .get_or_insert_default()
        .insert(labels::ROUTER_CONFIG.to_owned(), String::new());
    let config_map = ConfigMap {
        metadata,
        ..ConfigMap::default()
    };
    let data = [(BOOTSTRAP_FILE, bootstrap), (CONFIG_FILE, document)]
        .map(|(key, document)| (key.to_owned(), Content::Text(document.to_json())));
    Child {
        data: data.into_iter().collect(),
        ..child(ObjectKind::ConfigMap, &config_map)
    }
}

/// The connector of a Link.
pub(crate) fn connector(
    name: &str,
    role: Role,
    host: &str,
    port: u16,
    cost: u32,
    secret: &str,
) -> Connector {
    Connector {
        name: name.to_owned(),
        role,
        host: host.to_owned(),
        port,
        cost: Some(cost),
        ssl_profile: Some(names::link_profile(secret)),
        ..Connector::default()
    }
}
