//! What stands in for the router in tests?
//!
//! Test equipment: as strict as the real router is measured to be, for the path that the adaptor
//! walks, and no further. Configuration file, start-up faults, live management of profiles,
//! listeners and connectors, links between two of them over TLS with client certificates, health.
//!
//! Known to be otherwise than the real router, beside what is not there at all (TCP services carry
//! nothing, flow records and multi-hop routing are absent):
//! - only TLS 1.2 and 1.3; lists of ciphers are checked for plausibility and not obeyed;
//! - certificates are judged by webpki, which is stricter than OpenSSL: a leaf must not be a CA;
//! - a request whose correlation id is an unsigned number is carried out and not answered, where the
//!   real reply is one that fe2o3-amqp cannot decode.

mod agent;
mod config;
mod connection;
mod connector;
mod entity;
mod fault;
mod http;
mod launcher;
mod link;
mod listener;
mod management;
mod router;
mod schema;
mod table;
mod tls;
mod verify;
mod wire;
mod wording;

use std::path::Path;

pub use config::Config;
pub use launcher::prepare;
pub use router::{Log, Standin, StartError};

/// Reads and checks a configuration file.
pub fn read_config(path: &Path) -> Result<Config, StartError> {
    let text = std::fs::read_to_string(path).map_err(|_| config::unreadable())?;
    Config::parse(&text, &path.display().to_string())
}
