//! What may be known of a Secret or a ConfigMap once its bytes are gone?
//!
//! Everything that comes out of here is public: sizes, digests, and what an X.509 reader found in *certificates*.
//! The API server bounds an object at about 1 MiB, and with it the number of files and certificates in it; each
//! file is bounded here before it is parsed.

mod certificate;
mod pair;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use spanwire_plan::facts::{
    CA_FILE, CERTIFICATE_FILE, ConfigMapFacts, FileFacts, KEY_FILE, SecretFacts,
};
use spanwire_plan::labels;
use spanwire_router::config::{CONFIG_FILE, Document};
use spanwire_router::credentials::{self, PROFILES_FILE, Profiles};
use spanwire_router::report::{REPORT_CONFIG_MAP, Report};

pub(crate) use certificate::{certificates, is_self_signed, parsed};
pub(crate) use pair::{pair, private_key};

/// The longest controller id that is believed: a namespace and a name, with a slash.
const MAX_CONTROLLER: usize = 63 + 1 + 253;

/// The annotation in which `kubectl apply` keeps a copy of the whole object: of a Secret, its keys.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// What is left of a Secret in the World.
pub fn secret_facts(secret: &Secret) -> SecretFacts {
    let data = secret.data.iter().flatten();
    let file = |name: &str| {
        secret
            .data
            .as_ref()?
            .get(name)
            .map(|bytes| bytes.0.as_slice())
    };
    SecretFacts {
        metadata: metadata(&secret.metadata),
        type_: secret.type_.clone().unwrap_or_default(),
        files: data
            .map(|(name, bytes)| (name.clone(), file_facts(name, &bytes.0)))
            .collect(),
        pair: file(CERTIFICATE_FILE)
            .zip(file(KEY_FILE))
            .map(|(certificate, key)| pair(file(CA_FILE), certificate, key)),
        profiles: file(PROFILES_FILE).and_then(|json| Profiles::parse(json).ok()),
    }
}

/// What is left of a ConfigMap in the World.
pub fn config_map_facts(map: &ConfigMap) -> ConfigMapFacts {
    let data = map.data.iter().flatten();
    let file = |name: &str| map.data.as_ref()?.get(name).map(String::as_str);
    let is_called = |name: &str| map.metadata.name.as_deref() == Some(name);
    ConfigMapFacts {
        metadata: metadata(&map.metadata),
        files: data
            .map(|(name, text)| (name.clone(), file_facts(name, text.as_bytes())))
            .collect(),
        profiles_named: file(CONFIG_FILE).and_then(profiles_named),
        reports: if is_called(REPORT_CONFIG_MAP) {
            reports(map)
        } else {
            BTreeMap::new()
        },
        controller: file(labels::CONTROL_KEY)
            .filter(|id| is_called(labels::CONTROL_CONFIG_MAP) && id.len() <= MAX_CONTROLLER)
            .map(str::to_owned),
    }
}

/// The metadata that a decision may depend on: what names the object, whose it is, and who wrote it.
pub fn metadata(whole: &ObjectMeta) -> ObjectMeta {
    ObjectMeta {
        name: whole.name.clone(),
        namespace: whole.namespace.clone(),
        uid: whole.uid.clone(),
        resource_version: whole.resource_version.clone(),
        labels: whole.labels.clone(),
        annotations: whole.annotations.as_ref().map(public_annotations),
        owner_references: whole.owner_references.clone(),
        creation_timestamp: whole.creation_timestamp.clone(),
        deletion_timestamp: whole.deletion_timestamp.clone(),
        managed_fields: whole
            .managed_fields
            .as_ref()
            .map(|entries| entries.iter().map(manager).collect()),
        ..ObjectMeta::default()
    }
}

fn manager(entry: &ManagedFieldsEntry) -> ManagedFieldsEntry {
    ManagedFieldsEntry {
        manager: entry.manager.clone(),
        operation: entry.operation.clone(),
        subresource: entry.subresource.clone(),
        ..ManagedFieldsEntry::default()
    }
}

/// Tools keep copies of what they applied in annotations, each under a name of its own. So besides the best known
/// one, whatever looks like PEM, plain or in base64 as in a Secret's `data`, stays out.
fn public_annotations(all: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    const PEM: [&str; 2] = ["-----BEGIN", "LS0tLS1CRUdJTi"];

    all.iter()
        .filter(|(name, value)| {
            *name != LAST_APPLIED && !PEM.iter().any(|sign| value.contains(sign))
        })
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

fn file_facts(name: &str, content: &[u8]) -> FileFacts {
    let facts = FileFacts {
        size: content.len(),
        sha256: credentials::digest(content),
        ..FileFacts::default()
    };
    if name.strip_suffix(".crt").is_none() {
        return facts;
    }
    match certificate::facts(name, content) {
        Ok(certificates) => FileFacts {
            certificates,
            ..facts
        },
        Err(error) => FileFacts {
            error: Some(error.to_string()),
            ..facts
        },
    }
}

fn profiles_named(json: &str) -> Option<BTreeSet<String>> {
    let document = Document::parse(json.as_bytes()).ok()?;
    Some(
        document
            .profile_names()
            .into_iter()
            .map(str::to_owned)
            .collect(),
    )
}

fn reports(map: &ConfigMap) -> BTreeMap<String, Report> {
    map.data
        .iter()
        .flatten()
        .filter_map(|(pod, json)| Some((pod.clone(), Report::parse(json).ok()?)))
        .collect()
}

/// The facts of certificates that a test has made.
#[cfg(test)]
pub(crate) fn of_certificates(pem: &str) -> Vec<spanwire_plan::facts::CertificateFacts> {
    certificate::facts("tls.crt", pem.as_bytes()).expect("a test makes certificates that parse")
}

#[cfg(test)]
mod tests;
