//! What does a change cost the API server?

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use spanwire_e2e::audit::Request;
use spanwire_e2e::rest;
use spanwire_e2e::scene::{self, ours};
use spanwire_e2e::tally;
use spanwire_e2e::wait;

const LINKS: usize = 100;
/// The configuration, the nudge, the adaptor's report and the Link's status.
const WRITES: usize = 4;

#[test]
fn a_link_beside_a_hundred_costs_four_writes() -> Result<()> {
    scene::play("counts-links", |scene| {
        scene.apply([ours("Site", "west", &json!({}))])?;
        scene.holds("site", "west", "Ready")?;
        let client = json!({"ca": "skupper-site-ca", "subject": "east", "client": true});
        scene.apply([ours("Certificate", "east", &client)])?;
        scene.holds("certificate", "east", "Ready")?;
        scene.apply((0..LINKS).map(link))?;
        is_dialled(scene, LINKS)?;
        rest::reached(scene.bed, &[&scene.namespace])?;

        let mark = scene.bed.audit().mark()?;
        scene.apply([link(LINKS)])?;
        is_dialled(scene, LINKS + 1)?;
        rest::reached(scene.bed, &[&scene.namespace])?;
        let written = rest::writes(scene.bed, mark, &[&scene.namespace])?;
        let mut lines: Vec<String> = written.iter().map(Request::to_string).collect();
        // A nudge that was too early is repeated; how often is the machine's.
        let mut nudged = false;
        lines.retain(|line| {
            !(line.contains(" patch pods ") && std::mem::replace(&mut nudged, true))
        });
        ensure!(lines.len() <= WRITES, "{}", lines.join("\n"));
        Ok(())
    })
}

/// To where nobody answers, each to a port of its own.
fn link(number: usize) -> Value {
    let endpoint = json!({
        "name": "inter-router",
        "host": "10.96.255.254",
        "port": (20_000 + number).to_string(),
    });
    let spec = json!({"tlsCredentials": "east", "endpoints": [endpoint]});
    ours("Link", &format!("out-{number}"), &spec)
}

/// Waits until the adaptor tells of so many links.
fn is_dialled(scene: &scene::Scene, links: usize) -> Result<()> {
    wait::until(&format!("{links} links"), scene::WITHIN, || {
        let reports = tally::reports(&scene.kubectl, &scene.namespace)?;
        let is_it = reports.values().any(|report| report.links.len() == links);
        Ok(is_it.then_some(()))
    })
}
