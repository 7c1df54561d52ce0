//! Does the spec of a Certificate make sense, and what does it ask for?

use std::collections::BTreeSet;

use spanwire_api::Certificate;
use spanwire_api::certificate::reason;
use spanwire_api::condition::READY;

use crate::labels;
use crate::plan::Verdict;

/// A spec that makes sense.
pub(super) struct Wish<'a> {
    pub(super) name: String,
    pub(super) subject: &'a str,
    pub(super) hosts: BTreeSet<String>,
    /// The Secret that signs; absent for a CA that signs itself.
    pub(super) ca: Option<&'a str>,
    pub(super) client: bool,
    pub(super) server: bool,
    /// The value of the annotation that asks for a new key.
    pub(super) renew: Option<&'a String>,
}

impl<'a> Wish<'a> {
    pub(super) fn check(certificate: &'a Certificate) -> Result<Self, Verdict> {
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
