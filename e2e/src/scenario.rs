//! What do the scripts in `e2e/scenarios` do, told as a test tells it? Two sites, `<prefix>-west` and `<prefix>-east`, of
//! which the second links to the first by a token.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::bed::Bed;
use crate::census::Census;
use crate::kubectl::{Kubectl, has_condition};
use crate::namespace::Namespaces;
use crate::processes::{self, ROUTER};
use crate::scene::{self, ours};
use crate::tally::{self, Tally};
use crate::{command, wait, workspace};

const WITHIN: Duration = Duration::from_mins(2);
const SCRIPT_WITHIN: Duration = Duration::from_mins(4);
const GONE_WITHIN: Duration = Duration::from_mins(1);
/// Credentials and ports that rewrites go through; the last rewrite has the next of each.
const CREDENTIALS: u16 = 7;
const PORTS: u16 = 5;
const FIRST_PORT: u16 = 55690;

/// What a network of two sites counts as long as nothing went wrong.
pub const FAULTLESS: Tally = Tally {
    router_starts: 2,
    router_exits: 0,
    container_restarts: 0,
};

/// A script and the namespaces that it works in, which have to be there.
#[derive(Debug)]
pub struct Scenario<'a> {
    bed: &'a Bed,
    script: &'a str,
    prefix: &'a str,
    pub west: String,
    pub east: String,
}

/// Calls `test` with two sites whose link is up; their namespaces go with it.
pub fn linked(prefix: &str, test: impl FnOnce(&Bed, &Scenario<'_>) -> Result<()>) -> Result<()> {
    let bed = Bed::shared()?;
    linked_on(bed, prefix, |scenario| test(bed, scenario))
}

/// As [`linked`], on another bed than the shared one.
pub fn linked_on(
    bed: &Bed,
    prefix: &str,
    test: impl FnOnce(&Scenario<'_>) -> Result<()>,
) -> Result<()> {
    let scenario = Scenario::new(bed, "two-sites", prefix);
    let namespaces = Namespaces::make(bed, &scenario.namespaces())?;
    scenario.links()?;
    test(&scenario)?;
    namespaces.passed()
}

/// How often a configuration is rewritten without a pause.
fn rewrites() -> u16 {
    if scene::is_full() { 100 } else { 20 }
}

/// The uid of the one router pod of a namespace.
pub(crate) fn router_pod(kubectl: &Kubectl, namespace: &str) -> Result<String> {
    let selector = "--selector=skupper.io/component=router";
    let pods = kubectl.items(&["pods", selector, "--namespace", namespace])?;
    ensure!(pods.len() == 1, "{} router pods in {namespace}", pods.len());
    let uid = pods[0]["metadata"]["uid"].as_str();
    uid.map(str::to_owned).context("a uid")
}

impl<'a> Scenario<'a> {
    /// `script` is a file's name without `.sh`.
    pub fn new(bed: &'a Bed, script: &'a str, prefix: &'a str) -> Self {
        Self {
            bed,
            script,
            prefix,
            west: format!("{prefix}-west"),
            east: format!("{prefix}-east"),
        }
    }

    pub fn namespaces(&self) -> [&str; 2] {
        [&self.west, &self.east]
    }

    /// Runs the script as a person would, and waits for the link to be up.
    pub fn links(&self) -> Result<Value> {
        self.play(self.script)?;
        self.is_up()
    }

    /// Waits for the link to be up.
    pub fn is_up(&self) -> Result<Value> {
        let kubectl = self.bed.kubectl();
        wait::until("the link to be up", WITHIN, || {
            let links = kubectl.items(&["links.skupper.io", "--namespace", &self.east])?;
            Ok(links
                .into_iter()
                .find(|link| has_condition(link, "Operational")))
        })
    }

    /// The uid of the one router pod of a namespace.
    pub fn router_pod(&self, namespace: &str) -> Result<String> {
        router_pod(&self.bed.kubectl(), namespace)
    }

    /// How often routers started and ended.
    pub fn tally(&self) -> Result<Tally> {
        Tally::take(&self.bed.kubectl(), &self.namespaces())
    }

    /// Rewrites the west router's credentials and configuration together, again and again without a pause, and fails
    /// unless it ends as wanted last, nothing is refused and nothing went wrong on the way. Says how long the last
    /// rewrite took to reach the router.
    pub fn withstands_rewrites(&self) -> Result<Duration> {
        let kubectl = self.bed.kubectl();
        for round in 1..rewrites() {
            self.rewrite(&kubectl, round % CREDENTIALS, FIRST_PORT + round % PORTS)?;
        }
        // Others than all before, so that they tell of nothing but the last.
        let (credential, port) = (CREDENTIALS, FIRST_PORT + PORTS);
        let start = Instant::now();
        self.rewrite(&kubectl, credential, port)?;
        let pod = self.router_pod(&self.west)?;
        let waited = wait::until("the last port to be open", WITHIN, || {
            let router = processes::of_pod(&pod, &ROUTER)?;
            Ok(router.listens(port).then(|| start.elapsed()))
        })?;
        wait::until("nothing to be refused", WITHIN, || {
            let reports = tally::reports(&kubectl, &self.west)?;
            let mut reports = reports.values();
            Ok(reports
                .all(|report| report.refused.is_empty())
                .then_some(()))
        })?;
        let tally = self.tally()?;
        ensure!(tally == FAULTLESS, "{tally:?}");
        Ok(waited)
    }

    fn rewrite(&self, kubectl: &Kubectl, credential: u16, port: u16) -> Result<()> {
        let spec = json!({
            "accessType": "local",
            "generateTlsCredentials": true,
            "tlsCredentials": format!("credential-{credential}"),
            "roles": [{"name": "inter-router", "port": port}],
        });
        let access = ours("RouterAccess", "changing", &spec).to_string();
        kubectl
            .apply(&access, &["--namespace", &self.west])
            .map(drop)
    }

    /// Runs the script that takes everything away, and waits until nothing of ours is left.
    pub fn ends(&self) -> Result<()> {
        self.play(&format!("{}-clean-up", self.script))?;
        let kubectl = self.bed.kubectl();
        let mut left = Census::default();
        let gone = wait::until("everything of ours to be gone", GONE_WITHIN, || {
            left = Census::take(&kubectl, &self.namespaces())?;
            Ok(left.0.is_empty().then_some(()))
        });
        gone.with_context(|| left.0.keys().cloned().collect::<Vec<_>>().join(", "))
    }

    fn play(&self, script: &str) -> Result<()> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(self.bed.bin.clone()).chain(std::env::split_paths(&path));
        let mut shell = Command::new("sh");
        shell
            .arg(workspace::root().join(format!("e2e/scenarios/{script}.sh")))
            .current_dir(self.bed.scratch(self.prefix)?)
            .env("NS_PREFIX", self.prefix)
            .envs(self.bed.kubectl().environment())
            .env("PATH", std::env::join_paths(folders)?);
        command::output(&mut shell, SCRIPT_WITHIN).map(drop)
    }
}
