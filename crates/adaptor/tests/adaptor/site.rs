//! What do tests of linked sites begin with?

use crate::bed::{Pod, free_port};
use crate::gate::{Gate, Mood};
use crate::pki::{Authority, Credential};
use serde_json::{Value, json};
use spanwire_router::report::Report;

/// Two sites: `west` listens, `east` dials it.
pub(crate) struct Sites {
    pub(crate) authority: Authority,
    pub(crate) port: u16,
    pub(crate) west: Pod,
    pub(crate) east: Pod,
}

impl Sites {
    /// Both routers and adaptors run, and the link is up.
    pub(crate) fn linked() -> Self {
        let mut sites = Self::unlinked();
        let revision = sites.east.folder.swap();
        sites.west.folder.swap();
        sites.west.start();
        sites.east.start();
        sites.east.reported("the link is up", &revision, is_up);
        sites
    }

    /// All runs, and the adaptor of `east` reaches its router by a gate.
    pub(crate) fn behind(mood: Mood) -> (Self, Gate) {
        let mut sites = Self::unlinked();
        let gate = Gate::new(&sites.east.router.management, mood);
        sites.east.management.clone_from(&gate.address);
        sites.west.folder.swap();
        sites.east.folder.swap();
        sites.west.start();
        sites.east.start();
        (sites, gate)
    }

    /// Both routers run; the adaptors and the folders are not there yet.
    pub(crate) fn unlinked() -> Self {
        let authority = Authority::new("site-ca");
        let port = free_port();
        let mut west = Pod::new("west", "interior");
        west.folder
            .credential("skupper-site-server", &authority.issue("west"))
            .entity(
                "listener",
                &listener("skupper-router-inter-router", port, "skupper-site-server"),
            );
        let mut east = Pod::new("east", "interior");
        east.folder
            .credential("west-profile", &authority.issue("east"))
            .entity("connector", &connector("west", port, "west-profile"));
        Self {
            authority,
            port,
            west,
            east,
        }
    }
}

impl Sites {
    /// Gives the router of `east` a new version of its credential.
    pub(crate) fn rotate_east(&mut self) {
        let renewed = self.authority.issue("east");
        rotate(&mut self.east, "west-profile", &renewed);
    }

    /// Takes the link and its credential out of the folder of `east`; the folder's new revision.
    pub(crate) fn unlink(&mut self) -> String {
        let folder = &mut self.east.folder;
        folder
            .without_entity("west")
            .without_credential("west-profile")
            .swap()
    }

    /// Gives the router of `west` a new version of its credential.
    pub(crate) fn rotate_west(&mut self) {
        let renewed = self.authority.issue("west");
        rotate(&mut self.west, "skupper-site-server", &renewed);
    }
}

/// Gives a router a new version of a credential.
pub(crate) fn rotate(pod: &mut Pod, profile: &str, renewed: &Credential) {
    let revision = pod.folder.credential(profile, renewed).swap();
    let version = pod.folder.version(profile);
    pod.reported("the new version is in force", &revision, |report| {
        report.credentials.get(profile) == Some(&version)
    });
}

/// Whether the link to `west` is up.
pub(crate) fn is_up(report: &Report) -> bool {
    report.links.get("west").is_some_and(|link| link.up)
}

pub(crate) fn listener(name: &str, port: u16, profile: &str) -> Value {
    json!({
        "name": name, "role": "inter-router", "host": "127.0.0.1", "port": port,
        "sslProfile": profile, "saslMechanisms": "EXTERNAL", "authenticatePeer": true
    })
}

pub(crate) fn connector(name: &str, port: u16, profile: &str) -> Value {
    json!({
        "name": name, "role": "inter-router", "host": "127.0.0.1", "port": port.to_string(),
        "cost": 1, "sslProfile": profile
    })
}
