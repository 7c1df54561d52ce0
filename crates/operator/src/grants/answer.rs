//! What does a client get that has redeemed?
//!
//! A YAML stream: the Secret first, which upstream's client insists on, then a Link for each group of routers
//! (`facts/skupper-v2.md` §7.3).

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use spanwire_api::{Link, LinkSpec};
use spanwire_plan::facts::{CA_FILE, CERTIFICATE_FILE, KEY_FILE};
use spanwire_plan::plan::StoredLink;
use zeroize::{Zeroize, Zeroizing};

use super::Refusal;
use crate::pki::Credential;

/// What goes over the wire. It holds a key, and wipes it.
pub struct Answer {
    /// The YAML.
    pub body: Zeroizing<String>,
    /// Whether it is for a claim that had been counted before.
    pub is_repeated: bool,
}

/// The answer for a client that calls its token `name`.
pub(super) fn yaml(
    name: &str,
    credential: &Credential,
    links: Vec<StoredLink>,
) -> Result<Zeroizing<String>, Refusal> {
    let mut yaml = Zeroizing::new(String::with_capacity(16 * 1024));
    let mut secret = secret(name, credential);
    let written = document(&mut yaml, &secret);
    for bytes in secret.data.iter_mut().flat_map(BTreeMap::values_mut) {
        bytes.0.zeroize();
    }
    written?;
    for offered in links {
        document(&mut yaml, &link(offered, name))?;
    }
    Ok(yaml)
}

fn document(yaml: &mut Zeroizing<String>, object: &impl Serialize) -> Result<(), Refusal> {
    yaml.push_str("---\n");
    let text = serde_saphyr::to_string(object)
        .map(Zeroizing::new)
        .map_err(|error| {
            tracing::error!(%error, "Could not write the answer to a redemption");
            Refusal::Failed
        })?;
    yaml.push_str(&text);
    if !yaml.ends_with('\n') {
        yaml.push('\n');
    }
    Ok(())
}

fn secret(name: &str, credential: &Credential) -> Secret {
    let files = [
        (CA_FILE, credential.ca.as_str()),
        (CERTIFICATE_FILE, credential.certificate.as_str()),
        (KEY_FILE, credential.key.as_str()),
    ];
    Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        type_: Some("kubernetes.io/tls".to_owned()),
        data: Some(
            files
                .map(|(file, text)| (file.to_owned(), ByteString(text.as_bytes().to_vec())))
                .into(),
        ),
        ..Secret::default()
    }
}

fn link(offered: StoredLink, credentials: &str) -> Link {
    Link {
        metadata: ObjectMeta {
            name: Some(offered.name),
            ..ObjectMeta::default()
        },
        spec: LinkSpec {
            endpoints: offered.endpoints,
            tls_credentials: Some(credentials.to_owned()),
            ..LinkSpec::default()
        },
        status: None,
    }
}
