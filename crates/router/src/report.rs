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
    /// The revision of the last mount that was read completely ([`crate::credentials::revision`]);
    /// empty before the first.
    pub revision: String,
    /// Whether the full pass for that revision is done: everything else was tried, what was refused
    /// is below.
    pub settled: bool,
    /// What is wanted and is not so, by entity.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<Refused>,
    /// Profile → the version that the router uses.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub credentials: BTreeMap<String, String>,
    /// Listener for links → the port that it has opened.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub listeners: BTreeMap<String, u16>,
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
    /// Type and name: `connector/west`, `sslProfile/west-profile`; or the file that could not be
    /// read: `skrouterd.json`.
    pub entity: String,
    /// PascalCase.
    pub reason: String,
    /// For a person. Never with a key's content.
    pub message: String,
}

/// The link of one connector.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkReport {
    /// Whether traffic can flow: the connection is open, and on an interior router the peer is a
    /// neighbour.
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
    /// Over it, what is least needed goes first: messages of links, then versions in force, then
    /// refusals, then links, then listeners, each from the end of the alphabet; `omitted` counts them.
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
            self.omitted += omit(&mut self.credentials, share);
        } else if !self.refused.is_empty() {
            let kept = share(self.refused.len());
            self.omitted += self.refused.len() - kept;
            self.refused.truncate(kept);
        } else if !self.links.is_empty() {
            self.omitted += omit(&mut self.links, share);
        } else if !self.listeners.is_empty() {
            self.omitted += omit(&mut self.listeners, share);
        } else {
            // Only the few fixed fields are left: one of them is absurd.
            *self = Self {
                omitted: self.omitted,
                ..Self::default()
            };
        }
    }
}

/// Leaves out the last entries, and says how many.
fn omit<T>(entries: &mut BTreeMap<String, T>, kept: impl Fn(usize) -> usize) -> usize {
    let before = entries.len();
    *entries = std::mem::take(entries)
        .into_iter()
        .take(kept(before))
        .collect();
    before - entries.len()
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
    /// The router said yes, and shows something else. It is left alone for a while rather than made
    /// anew each time.
    pub const NOT_AS_WANTED: &str = "NotAsWanted";
    /// A listener's port is somebody else's, or did not open.
    pub const PORT_TAKEN: &str = "PortTaken";
    /// Its profile has no good version, neither in the mounted Secret nor from before. Normal for a
    /// moment.
    pub const CREDENTIAL_MISSING: &str = "CredentialMissing";
    /// Its profile's new version was not taken: files missing, unreadable, altered, or not
    /// belonging together. An older good version, if there is one, stays in force.
    pub const CREDENTIAL_BAD: &str = "CredentialBad";
    /// A mounted document cannot be understood; the last good one stays in force.
    pub const CONFIG_BAD: &str = "ConfigBad";
    /// The router does not answer, or not so that it can be understood.
    pub const ROUTER_UNREACHABLE: &str = "RouterUnreachable";
    /// The mounted folder cannot be read; what was read last stays in force.
    pub const MOUNT_UNREADABLE: &str = "MountUnreadable";
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(entity: &str, message: &str) -> Refused {
        let reason = reason::ROUTER_REFUSED.to_owned();
        Refused {
            entity: entity.to_owned(),
            reason,
            message: message.to_owned(),
        }
    }

    fn link(message: Option<&str>) -> LinkReport {
        LinkReport {
            message: message.map(str::to_owned),
            ..LinkReport::default()
        }
    }

    #[test]
    fn what_was_written_is_read_back() {
        let up = LinkReport {
            up: true,
            remote: Some("west-0".to_owned()),
            since: Some("2026-01-01T00:00:00Z".to_owned()),
            tls: Some("TLSv1.3".to_owned()),
            message: None,
        };
        let report = Report {
            revision: "0123456789abcdef".to_owned(),
            settled: true,
            refused: vec![refused("connector/east", "no")],
            credentials: BTreeMap::from([("p".to_owned(), "1".to_owned())]),
            links: BTreeMap::from([("east".to_owned(), up)]),
            router: RouterReport {
                starts: 1,
                exits: 0,
                id: Some("r".to_owned()),
                mode: Some(Mode::Edge),
            },
            adaptor_version: "0.1.0".to_owned(),
            listeners: BTreeMap::from([("peers-edge".to_owned(), 45671)]),
            omitted: 0,
        };
        assert_eq!(Report::parse(&report.to_json()).unwrap(), report);
    }

    #[test]
    fn a_report_of_another_version_is_read_as_far_as_it_goes() {
        let report =
            Report::parse(r#"{"revision": "r", "router": {"starts": 2}, "novelty": {}}"#).unwrap();
        assert_eq!(
            (
                report.revision.as_str(),
                report.router.starts,
                report.settled
            ),
            ("r", 2, false)
        );
    }

    #[test]
    fn the_order_of_refusals_does_not_matter() {
        let mut report = Report {
            refused: vec![refused("b", "1"), refused("a", "2")],
            ..Report::default()
        };
        let json = report.to_json();
        report.refused.reverse();
        assert_eq!(report.to_json(), json);
    }

    #[test]
    fn a_report_never_grows_over_its_limit_and_links_go_last() {
        let names = (0..400).map(|number| format!("{number:0250}"));
        let long = "ü".repeat(10_000);
        let report = Report {
            revision: "r".to_owned(),
            settled: true,
            refused: names.clone().map(|name| refused(&name, &long)).collect(),
            credentials: names
                .clone()
                .map(|name| (name, "0123456789abcdef".to_owned()))
                .collect(),
            links: names
                .take(100)
                .map(|name| (name, link(Some(&long))))
                .collect(),
            ..Report::default()
        };
        let json = report.to_json();
        assert!(json.len() <= MAX_REPORT, "{}", json.len());
        let read = Report::parse(&json).unwrap();
        assert_eq!((read.revision.as_str(), read.settled), ("r", true));
        assert_eq!(read.links.len(), 100);
        assert!(!read.refused.is_empty() && read.credentials.is_empty());
        assert_eq!(read.omitted, 400 + 400 - read.refused.len());
        assert!(
            read.refused
                .iter()
                .all(|refused| refused.message.chars().count() <= MAX_MESSAGE + 1)
        );
    }

    #[test]
    fn a_report_whose_fixed_fields_are_absurd_is_still_written() {
        let report = Report {
            revision: "r".repeat(2 * MAX_REPORT),
            ..Report::default()
        };
        assert!(report.to_json().len() <= MAX_REPORT);
    }

    #[test]
    fn a_report_that_is_too_large_is_not_read() {
        let json = " ".repeat(MAX_REPORT + 1);
        assert!(matches!(
            Report::parse(&json),
            Err(ParseReport::LimitSize { .. })
        ));
    }
}
