//! What do users do, step by step? The workloads of `faults.md` §1.3.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use spanwire_e2e::credential::{Authority, Holder};
use spanwire_e2e::kubectl::Kubectl;
use spanwire_e2e::scene::ours;
use spanwire_e2e::snapshot::Snapshot;

/// Where a run goes on.
#[derive(Debug)]
pub(super) struct Place<'a> {
    pub(super) kubectl: Kubectl,
    pub(super) namespace: String,
    pub(super) peer: &'a Peer,
}

/// A site that grants as often as it is asked.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) uid: String,
    /// The spec of a token for it.
    pub(super) token: Value,
}

pub(super) struct Workload {
    pub(super) name: &'static str,
    /// Whether it begins before the operator has made what it needs for itself.
    pub(super) is_of_start: bool,
    pub(super) steps: Vec<Step>,
}

/// Something that a user does, and has done when nothing is written any more.
pub(super) struct Step {
    pub(super) act: fn(&Place<'_>) -> Result<()>,
    /// Whether what Kubernetes does about it is done, which may take it a while.
    pub(super) is_done: fn(&Snapshot) -> bool,
}

impl Workload {
    pub(super) fn all() -> Vec<Workload> {
        let start = Workload {
            name: "start",
            is_of_start: true,
            steps: vec![step(|_| Ok(()))],
        };
        let site = |place: &Place<'_>| place.site(&json!({}));
        let linkable = |place: &Place<'_>| place.site(&json!({"linkAccess": "default"}));
        vec![
            start,
            workload("w1-site", vec![step(site)]),
            workload("w2-access", vec![step(linkable)]),
            workload(
                "w3-ha",
                vec![
                    step(linkable),
                    step(|place| place.merge("site", "site", &json!({"spec": {"ha": true}}))),
                    step(|place| place.merge("site", "site", &json!({"spec": {"ha": false}}))),
                ],
            ),
            workload(
                "w4-grant",
                vec![
                    step(linkable),
                    step(|place| place.apply(&ours("AccessGrant", "grant", &json!({})))),
                ],
            ),
            workload(
                "w5-token",
                vec![
                    step(site),
                    step(|place| place.apply(&ours("AccessToken", "token", &place.peer.token))),
                ],
            ),
            workload(
                "w6-link",
                vec![
                    step(site),
                    step(link),
                    step(|place| place.delete("link", "east")),
                ],
            ),
            workload(
                "w7-secret",
                vec![step(site), step(access), step(others_credential)],
            ),
            workload(
                "w8-hosts",
                vec![
                    step(site),
                    step(|place| place.certificate(&["one.example"])),
                    step(|place| place.certificate(&["one.example", "two.example"])),
                ],
            ),
            workload(
                "w9-ca",
                vec![
                    step(linkable),
                    step(|place| {
                        let wish = json!({"internal.spanwire.io/renew": "once"});
                        let patch = json!({"metadata": {"annotations": wish}});
                        place.merge("certificate", "skupper-site-ca", &patch)
                    }),
                ],
            ),
            workload(
                "w10-again",
                vec![
                    step(linkable),
                    Step {
                        act: |place| place.delete("site", "site"),
                        is_done: |state| !state.has("Deployment/skupper-router"),
                    },
                    step(linkable),
                ],
            ),
        ]
    }
}

fn workload(name: &'static str, steps: Vec<Step>) -> Workload {
    Workload {
        name,
        is_of_start: false,
        steps,
    }
}

fn step(act: fn(&Place<'_>) -> Result<()>) -> Step {
    Step {
        act,
        is_done: |_| true,
    }
}

impl Place<'_> {
    fn site(&self, spec: &Value) -> Result<()> {
        self.apply(&ours("Site", "site", spec))
    }

    fn certificate(&self, hosts: &[&str]) -> Result<()> {
        let spec = json!({
            "ca": "skupper-site-ca",
            "subject": "one.example",
            "hosts": hosts,
            "server": true,
        });
        self.apply(&ours("Certificate", "own", &spec))
    }

    fn apply(&self, object: &Value) -> Result<()> {
        let here = ["--namespace", &self.namespace];
        self.kubectl.apply(&object.to_string(), &here).map(drop)
    }

    fn merge(&self, kind: &str, name: &str, patch: &Value) -> Result<()> {
        let patch = patch.to_string();
        let args = ["patch", kind, name, "--type=merge", "--patch", &patch];
        self.run(&args)
    }

    fn delete(&self, kind: &str, name: &str) -> Result<()> {
        self.run(&["delete", kind, name])
    }

    fn run(&self, args: &[&str]) -> Result<()> {
        let here = ["--namespace", &self.namespace];
        self.kubectl.run(&[args, &here[..]].concat()).map(drop)
    }
}

/// A Link with a user's own credential.
fn link(place: &Place<'_>) -> Result<()> {
    let secret = Authority::new("elsewhere")?.secret("east", &Holder::Router(Vec::new()), None)?;
    place.apply(&secret.context("a credential")?)?;
    let endpoint = json!({"name": "inter-router", "host": "east.example", "port": "55671"});
    let spec = json!({"endpoints": [endpoint], "tlsCredentials": "east", "cost": 2});
    place.apply(&ours("Link", "east", &spec))
}

/// A RouterAccess with a user's own credential.
fn access(place: &Place<'_>) -> Result<()> {
    others_credential(place)?;
    let spec = json!({
        "accessType": "local",
        "roles": [{"name": "inter-router", "port": 55671}],
        "tlsCredentials": "own",
    });
    place.apply(&ours("RouterAccess", "own", &spec))
}

/// A credential of another CA each time.
fn others_credential(place: &Place<'_>) -> Result<()> {
    let hosts = vec![format!("own.{}", place.namespace)];
    let secret = Authority::new("own")?.secret("own", &Holder::Router(hosts), None)?;
    place.apply(&secret.context("a credential")?)
}
