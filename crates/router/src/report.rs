//! What does an adaptor tell the operator about its router?

use crate::entity::Mode;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use thiserror::Error;

/// The ConfigMap that the reports of a site's routers are written to, one key a pod.
pub const REPORT_CONFIG_MAP: &str = "skupper-router-report";

/// The largest report, in bytes.
pub const MAX_REPORT: usize = 64 * 1024;

/// The longest message in a report, in characters.
const MAX_MESSAGE: usize = 512;

/// The key of a pod's report. The uid keeps a pod from being taken for its namesake of yesterday.
pub fn report_key(pod: &str, uid: &str) -> String {
    format!("{pod}.{uid}")
}

/// The state of one router and its adaptor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Report {
    /// The revision of the last mount that was read completely ([`crate::credentials::revision`]); empty before the first.
    pub revision: String,
    /// Whether the full pass for that revision is done: everything else was tried, what was refused is below.
    pub settled: bool,
    /// What is wanted and is not so, by entity.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<Refused>,
    /// Profile → the version that the router uses.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub credentials: BTreeMap<String, String>,
    /// Connector → its link.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub links: BTreeMap<String, LinkReport>,
    /// The router process.
    pub router: RouterReport,
    /// The version of the adaptor.
    pub adaptor_version: String,
    /// How many entries were left out to stay under [`MAX_REPORT`].
    #[serde(skip_serializing_if = "is_zero")]
    pub omitted: usize,
}

/// One entity that is not as it is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Refused {
    /// Type and name: `connector/west`, `sslProfile/west-profile`; or the file that could not be read: `skrouterd.json`.
    pub entity: String,
    /// PascalCase.
    pub reason: String,
    /// For a person. Never with a key's content.
    pub message: String,
}

/// The link of one connector.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkReport {
    /// Whether traffic can flow: the connection is open, and on an interior router the peer is a neighbour.
    pub up: bool,
    /// The container id of the peer, while connected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<String>,
    /// When `up` last changed, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// The TLS version, while connected with TLS: `TLSv1.3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<String>,
    /// The last error of the connector, while not up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// The router process, as far as its adaptor can tell.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RouterReport {
    /// Routers that this adaptor has met: 1 when nothing ever went wrong.
    pub starts: u32,
    /// Routers that went away under it.
    pub exits: u32,
    /// Its id in the network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Interior or edge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
}

/// Why a report was not believed.
#[derive(Debug, Error)]
pub enum ParseReport {
    /// Over [`MAX_REPORT`].
    #[error("the report has {size} bytes, more than {MAX_REPORT}")]
    LimitSize {
        /// In bytes.
        size: usize,
    },
    /// No JSON of the right shape.
    #[error("the report cannot be read: {0}")]
    ReadJson(#[from] serde_json::Error),
}

impl Report {
    /// Reads a report.
    ///
    /// # Errors
    /// It is too large or has the wrong shape.
    pub fn parse(json: &str) -> Result<Self, ParseReport> {
        if json.len() > MAX_REPORT {
            return Err(ParseReport::LimitSize { size: json.len() });
        }
        Ok(serde_json::from_str(json)?)
    }

    /// Writes the report: compact, the same text for the same facts, and never over [`MAX_REPORT`].
    ///
    /// Over it, what is least needed goes first: messages of links, then versions in force, then refusals, then links,
    /// each from the end of the alphabet; `omitted` counts them.
    pub fn to_json(&self) -> String {
        let mut report = self.clone();
        report.refused.sort();
        for refused in &mut report.refused {
            shorten(&mut refused.message);
        }
        for message in report
            .links
            .values_mut()
            .filter_map(|link| link.message.as_mut())
        {
            shorten(message);
        }
        let mut json = report.compact();
        if json.len() > MAX_REPORT {
            for link in report.links.values_mut() {
                link.message = None;
            }
            json = report.compact();
        }
        while json.len() > MAX_REPORT {
            report.omit_some();
            json = report.compact();
        }
        json
    }

    fn compact(&self) -> String {
        // Maps of text to structs of plain values cannot fail to be written.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Leaves out a tenth, at least one, of the least needed entries that are left.
    fn omit_some(&mut self) {
        let share = |len: usize| len - len.div_ceil(10).min(len);
        if !self.credentials.is_empty() {
            let kept = share(self.credentials.len());
            self.omitted += self.credentials.len() - kept;
            self.credentials = std::mem::take(&mut self.credentials)
                .into_iter()
                .take(kept)
                .collect();
        } else if !self.refused.is_empty() {
            let kept = share(self.refused.len());
            self.omitted += self.refused.len() - kept;
            self.refused.truncate(kept);
        } else if !self.links.is_empty() {
            let kept = share(self.links.len());
            self.omitted += self.links.len() - kept;
            self.links = std::mem::take(&mut self.links)
                .into_iter()
                .take(kept)
                .collect();
        } else {
            // Only the few fixed fields are left: one of them is absurd.
            *self = Self {
                omitted: self.omitted,
                ..Self::default()
            };
        }
    }
}

fn shorten(message: &mut String) {
    if let Some((end, _)) = message.char_indices().nth(MAX_MESSAGE) {
        message.truncate(end);
        message.push('…');
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the shape that serde asks for"
)]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// Why an entity is not as it is wanted: what [`Refused::reason`] may say.
pub mod reason {
    /// The router said no; the message is its own. It is tried again.
    pub const ROUTER_REFUSED: &str = "RouterRefused";
    /// The router said yes, and shows something else. It is left alone for a while rather than made anew each time.
    pub const NOT_AS_WANTED: &str = "NotAsWanted";
    /// A listener's port is somebody else's, or did not open.
    pub const PORT_TAKEN: &str = "PortTaken";
    /// Its profile has no good version, neither in the mounted Secret nor from before. Normal for a moment.
    pub const CREDENTIAL_MISSING: &str = "CredentialMissing";
    /// Its profile's new version was not taken: files missing, unreadable, altered, or not belonging together. An older
    /// good version, if there is one, stays in force.
    pub const CREDENTIAL_BAD: &str = "CredentialBad";
    /// A mounted document cannot be understood; the last good one stays in force.
    pub const CONFIG_BAD: &str = "ConfigBad";
    /// The mounted folder cannot be read; what was read last stays in force.
    pub const MOUNT_UNREADABLE: &str = "MountUnreadable";
}
