//! What does a credential keep of the one that was in its Secret before?

use std::collections::BTreeSet;

use serde::Serialize;

/// What an issue takes over from the live Secret, read at the revision that the issue names. Nothing by default.
/// Certificates are named by their fingerprints, as facts name them: neither a certificate nor a key passes through a
/// plan (`docs/adr/0010-bridges.md`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Legacy {
    /// Key and certificate stay; only what stands around them is written: the chain behind the certificate in
    /// `tls.crt`, and `ca.crt`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub pair: bool,
    /// The old key signs the new one. This bridge stands behind the new certificate in `tls.crt`, in the same write,
    /// so that whoever trusts only the old CA can follow. Of a CA only.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub bridge: bool,
    /// Which certificates of the live `ca.crt` stay in it.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub roots: BTreeSet<String>,
    /// Which certificates of the live `tls.crt` stay in its chain.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub chain: BTreeSet<String>,
}

impl Legacy {
    /// Whether nothing is taken over, so that the live Secret need not be read.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
