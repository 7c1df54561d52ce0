//! What is known of a Secret or a ConfigMap once its bytes are gone?
//!
//! The operator's stores compute facts; this crate judges them. A fact is public by construction: sizes,
//! digests, and what an X.509 reader found in *certificates*. Neither keys nor codes have a field to be in.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};
use spanwire_router::credentials::Profiles;
use spanwire_router::report::Report;

/// The file of a Secret that holds the certificates which its reader trusts.
pub const CA_FILE: &str = "ca.crt";
/// The file of a Secret that holds a certificate, its own first, then its chain.
pub const CERTIFICATE_FILE: &str = "tls.crt";
/// The file of a Secret that holds the private key.
pub const KEY_FILE: &str = "tls.key";

/// One Secret, as facts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretFacts {
    /// Name, uid, resourceVersion, labels, annotations and owners; nothing else is kept.
    pub metadata: ObjectMeta,
    /// The Secret's type, `kubernetes.io/tls` for credentials.
    #[serde(default, rename = "type", skip_serializing_if = "String::is_empty")]
    pub type_: String,
    /// By key of `data`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, FileFacts>,
    /// How `tls.crt`, `tls.key` and `ca.crt` fit together; absent where one of the first two is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pair: Option<PairFacts>,
    /// The content of `profiles.json`, where the Secret has one that parses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profiles: Option<Profiles>,
}

/// One file of a Secret or ConfigMap.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FileFacts {
    /// In bytes.
    pub size: usize,
    /// SHA-256 over the content, 64 lower-case hex digits.
    pub sha256: String,
    /// The certificates of a file whose name ends in `.crt`, in the file's order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub certificates: Vec<CertificateFacts>,
    /// Why a file that should hold certificates could not be read as such.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What an X.509 reader found in one certificate (RFC 5280).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateFacts {
    /// The subject's common name.
    pub subject: String,
    /// The issuer's common name.
    pub issuer: String,
    /// Alternative names of type dNSName.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub dns: BTreeSet<String>,
    /// Alternative names of type iPAddress, in canonical text.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub ips: BTreeSet<String>,
    /// Whether the extended key usage allows TLS clients (an absent extension allows all).
    pub client: bool,
    /// Whether the extended key usage allows TLS servers (an absent extension allows all).
    pub server: bool,
    /// Whether basicConstraints says that this is a CA.
    pub is_ca: bool,
    /// basicConstraints' path length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_length: Option<u32>,
    /// Start of validity.
    pub not_before: Timestamp,
    /// End of validity.
    pub not_after: Timestamp,
    /// Subject key identifier in hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
    /// Authority key identifier in hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authority_id: Option<String>,
    /// SHA-256 over the DER encoding, in hex.
    pub fingerprint: String,
}

/// How the parts of a credential fit together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PairFacts {
    /// What is wrong with `tls.key`, or between it and `tls.crt`; absent when the key belongs to the certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_error: Option<String>,
    /// Why the chain of `tls.crt` does not lead to a certificate of `ca.crt`; absent when it does (signatures
    /// are checked; validity is not, as time is not a fact).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain_error: Option<String>,
    /// Fingerprints of those certificates of `tls.crt` and `ca.crt` whose key has signed the first one of `tls.crt`.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub signers: BTreeSet<String>,
}

/// One ConfigMap, as facts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigMapFacts {
    /// Name, uid, resourceVersion, labels, annotations and owners; nothing else is kept.
    pub metadata: ObjectMeta,
    /// By key of `data`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, FileFacts>,
    /// The profiles that the users in `skrouterd.json` name; absent where there is no such document, or it does
    /// not parse.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profiles_named: Option<BTreeSet<String>>,
    /// The adaptors' reports by key, those that parse.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub reports: BTreeMap<String, Report>,
    /// Key `controller` of the ConfigMap `skupper`: who owns the namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<String>,
}

impl SecretFacts {
    /// The Secret's own certificate: the first of `tls.crt`.
    pub fn certificate(&self) -> Option<&CertificateFacts> {
        self.chain().first()
    }

    /// The value of one of the Secret's annotations.
    pub fn annotation(&self, key: &str) -> Option<&String> {
        self.metadata.annotations.as_ref()?.get(key)
    }

    /// The certificates of `tls.crt`: its own, then whatever stands between it and a root.
    pub fn chain(&self) -> &[CertificateFacts] {
        self.files
            .get(CERTIFICATE_FILE)
            .map_or(&[], |file| file.certificates.as_slice())
    }

    /// The certificates of `ca.crt`.
    pub fn trusted(&self) -> &[CertificateFacts] {
        self.files
            .get(CA_FILE)
            .map_or(&[], |file| file.certificates.as_slice())
    }
}

impl CertificateFacts {
    /// All alternative names. An IP address that is there both ways, as we write it, counts once.
    pub fn names(&self) -> BTreeSet<String> {
        self.dns.union(&self.ips).cloned().collect()
    }

    /// Whether a TLS client that dials `host` finds it among the names, as the router compares them: DNS names
    /// only, an IP address too (`facts/router.md` §5).
    pub fn covers(&self, host: &str) -> bool {
        let wanted = host.to_ascii_lowercase();
        self.dns.iter().any(|name| {
            let name = name.to_ascii_lowercase();
            name == wanted
                || name.strip_prefix('*').is_some_and(|suffix| {
                    suffix.starts_with('.')
                        && wanted
                            .strip_suffix(suffix)
                            .is_some_and(|label| !label.is_empty() && !label.contains('.'))
                })
        })
    }
}
