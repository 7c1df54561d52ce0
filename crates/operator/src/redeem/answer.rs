//! What is taken over from a peer's answer?
//!
//! The peer is a stranger who knows a code. So nothing of his answer is applied as it came: it is read under a budget,
//! what is wanted is looked for and checked, and everything that is kept is written anew. Names are the token's,
//! metadata is left where it was.

use std::collections::BTreeMap;
use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_saphyr::options::{DuplicateKeyPolicy, MergeKeyPolicy};
use spanwire_api::{Endpoint, GROUP};
use spanwire_plan::facts::{CA_FILE, CERTIFICATE_FILE, KEY_FILE};
use spanwire_plan::offer::{self, is_linkable};
use spanwire_plan::plan::StoredLink;
use thiserror::Error;
use zeroize::{Zeroize, Zeroizing};

use crate::facts::{self, certificates, parsed, private_key};
use crate::pki::{Credential, pem};

/// The most Links of one answer: a site has two routers at most.
const LINKS: usize = 8;
/// The most endpoints of one Link.
const ENDPOINTS: usize = 16;
/// The longest name of a group of routers.
const MAX_GROUP: usize = 63;
/// The longest host.
const MAX_HOST: usize = 253;

/// What is kept of an answer.
pub(super) struct Received {
    /// With which to dial the other site.
    pub(super) credential: Credential,
    /// At least one.
    pub(super) links: Vec<StoredLink>,
}

/// Why an answer is not taken. The texts are shown to people, so nothing of the answer is in them.
#[derive(Debug, Error)]
pub(super) enum ReadAnswer {
    #[error("the answer is not text")]
    DecodeText,
    #[error("the answer is not YAML that is worth reading")]
    ParseYaml,
    #[error("the answer holds something that is neither a Secret nor a Link")]
    KnowKind,
    #[error("the answer holds no Secret, or more than one")]
    FindSecret,
    #[error("the answer's Secret is not of type kubernetes.io/tls")]
    KnowType,
    #[error("the answer's Secret has no usable {0}")]
    FindFile(&'static str),
    #[error("the answer's Secret is not a credential: {0}")]
    MatchKey(String),
    #[error("the answer holds no Link, or more than {LINKS}")]
    CountLinks,
    #[error("a Link of the answer has no endpoint, or more than {ENDPOINTS}")]
    CountEndpoints,
    #[error(
        "a Link of the answer leads to something that is not a host and a port from 1 to 65535"
    )]
    CheckEndpoint,
}

/// One document of the answer, as far as it is looked at.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    api_version: String,
    kind: String,
    #[serde(default, rename = "type")]
    type_: Option<String>,
    #[serde(default)]
    data: BTreeMap<String, String>,
    #[serde(default)]
    spec: Spec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Spec {
    endpoints: Vec<Endpoint>,
}

impl Drop for Document {
    fn drop(&mut self) {
        self.data.values_mut().for_each(Zeroize::zeroize);
    }
}

impl Received {
    /// Reads the answer for the token of this name.
    pub(super) fn parse(token: &str, answer: &[u8]) -> Result<Self, ReadAnswer> {
        let text = std::str::from_utf8(answer).map_err(|_| ReadAnswer::DecodeText)?;
        // The error is not kept: it would quote the answer.
        let documents: Vec<Document> = serde_saphyr::from_multiple_with_options(text, options())
            .map_err(|_| ReadAnswer::ParseYaml)?;
        let (secrets, links): (Vec<&Document>, Vec<&Document>) =
            documents.iter().partition(|document| is_secret(document));
        if !links.iter().all(|document| is_link(document)) {
            return Err(ReadAnswer::KnowKind);
        }
        let [secret] = secrets.as_slice() else {
            return Err(ReadAnswer::FindSecret);
        };
        if links.is_empty() || links.len() > LINKS {
            return Err(ReadAnswer::CountLinks);
        }
        let groups = links.iter().map(|link| endpoints(&link.spec));
        let groups = groups.collect::<Result<_, ReadAnswer>>()?;
        Ok(Self {
            links: offer::links(token, groups),
            credential: Self::credential(secret)?,
        })
    }

    fn credential(secret: &Document) -> Result<Credential, ReadAnswer> {
        if secret.type_.as_deref() != Some("kubernetes.io/tls") {
            return Err(ReadAnswer::KnowType);
        }
        let file = |name: &'static str| {
            let base64 = secret.data.get(name).ok_or(ReadAnswer::FindFile(name))?;
            let bytes = STANDARD
                .decode(base64)
                .map_err(|_| ReadAnswer::FindFile(name))?;
            Ok::<_, ReadAnswer>(Zeroizing::new(bytes))
        };
        let key_file = file(KEY_FILE)?;
        let received = Credential {
            ca: rewritten(CA_FILE, &file(CA_FILE)?)?,
            certificate: rewritten(CERTIFICATE_FILE, &file(CERTIFICATE_FILE)?)?,
            key: rewritten_key(&key_file)?,
        };
        let pair = facts::pair(
            None,
            received.certificate.as_bytes(),
            received.key.as_bytes(),
        );
        match pair.key_error {
            Some(error) => Err(ReadAnswer::MatchKey(error)),
            None => Ok(received),
        }
    }
}

fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: 4000,
            max_nodes: 2000,
            max_aliases: 0,
            max_anchors: 0,
            max_documents: 1 + LINKS,
            max_depth: 8,
            flow_nesting_limit: 8,
            max_total_scalar_bytes: 64 * 1024,
            max_merge_keys: 0,
            max_inclusion_depth: 0,
        },
        duplicate_keys: DuplicateKeyPolicy::Error,
        merge_keys: MergeKeyPolicy::Error,
        emit_comments: false,
    }
}

fn is_secret(document: &Document) -> bool {
    document.kind == "Secret" && document.api_version == "v1"
}

fn is_link(document: &Document) -> bool {
    let group = document.api_version.split_once('/').map(|(group, _)| group);
    document.kind == "Link" && group == Some(GROUP)
}

/// The certificates of a file and nothing else that was in it.
fn rewritten(file: &'static str, content: &[u8]) -> Result<String, ReadAnswer> {
    let found = certificates(file, content).map_err(|_| ReadAnswer::FindFile(file))?;
    parsed(file, &found).map_err(|_| ReadAnswer::FindFile(file))?;
    Ok(found.iter().map(|der| pem::certificate(der)).collect())
}

fn rewritten_key(content: &[u8]) -> Result<Zeroizing<String>, ReadAnswer> {
    let key = private_key(content).map_err(|_| ReadAnswer::FindFile(KEY_FILE))?;
    Ok(pem::private_key(&key))
}

fn endpoints(spec: &Spec) -> Result<Vec<Endpoint>, ReadAnswer> {
    if spec.endpoints.is_empty() || spec.endpoints.len() > ENDPOINTS {
        return Err(ReadAnswer::CountEndpoints);
    }
    let is_good = |endpoint: &Endpoint| {
        is_linkable(endpoint)
            && is_host(&endpoint.host)
            && endpoint.port.bytes().all(|byte| byte.is_ascii_digit())
            && endpoint.port.parse::<u16>().is_ok_and(|port| port != 0)
            && endpoint.group.len() <= MAX_GROUP
            && endpoint
                .group
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    if !spec.endpoints.iter().all(is_good) {
        return Err(ReadAnswer::CheckEndpoint);
    }
    Ok(spec.endpoints.clone())
}

/// A DNS name or an IP address; underscores occur in the wild.
fn is_host(host: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let is_name = |host: &str| {
        let host = host.strip_suffix('.').unwrap_or(host);
        host.split('.').all(is_label)
            && !host
                .bytes()
                .all(|byte| byte.is_ascii_digit() || byte == b'.')
    };
    host.len() <= MAX_HOST && (host.parse::<IpAddr>().is_ok() || is_name(host))
}

#[cfg(test)]
mod tests;
