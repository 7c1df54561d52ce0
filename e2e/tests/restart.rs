//! Does a restart of the operator cost anything? The first pass is the recovery, and finds nothing to do.
//!
//! In a program of its own: Cargo runs one after the other, and no other test may miss its operator.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use spanwire_e2e::bed::Bed;
use spanwire_e2e::census::Census;
use spanwire_e2e::install::{self, NAMESPACE};
use spanwire_e2e::scene::{self, Scene, ours, text};
use spanwire_e2e::{rest, wait};

const REST: Duration = Duration::from_secs(10);
/// A lease that nobody gives back runs out after 15 s.
const LEADS_WITHIN: Duration = Duration::from_mins(1);

#[test]
fn nothing_is_written_after_restart() -> Result<()> {
    scene::play("restart", |scene| {
        scene.apply([
            ours("Site", "west", &json!({"linkAccess": "default"})),
            ours("AccessGrant", "for-east", &json!({})),
            ours(
                "Link",
                "nowhere",
                &json!({
                    "endpoints": [{"name": "inter-router", "host": "nowhere.example", "port": "55671"}],
                    "tlsCredentials": "not-there",
                }),
            ),
        ])?;
        scene.holds("site", "west", "Ready")?;
        scene.holds("accessgrant", "for-east", "Ready")?;
        scene.refused("link", "nowhere", "Configured", "CredentialsNotFound")?;

        let namespaces = [scene.namespace.as_str(), NAMESPACE];
        for way in ["--wait=true", "--force"] {
            rest::reached(scene.bed, &namespaces)?;
            let mark = scene.bed.audit().mark()?;
            let before = census(scene.bed, &namespaces)?;
            replace_operator(scene, way)?;
            wait::for_period(REST)?;

            let written = rest::writes(scene.bed, mark, &namespaces)?;
            let written: Vec<String> = written
                .iter()
                .filter(|request| request.object_ref.resource != "events")
                .map(ToString::to_string)
                .collect();
            ensure!(
                written.is_empty(),
                "written after a restart ({way}):\n{}",
                written.join("\n")
            );
            let changes = before.changes(&census(scene.bed, &namespaces)?);
            ensure!(
                changes.is_empty(),
                "changed by a restart ({way}):\n{}",
                changes.join("\n")
            );
        }
        changes_are_caught_up(scene)
    })
}

/// What happened while no operator was there is found by the first pass of the next.
fn changes_are_caught_up(scene: &Scene) -> Result<()> {
    install::scale(&scene.kubectl, 0)?;
    let ended = damage_is_done(scene);
    install::scale(&scene.kubectl, 1)?;
    ended?;
    scene.wait(
        "the Role to be as it was",
        LEADS_WITHIN,
        ("role", "skupper-router"),
        |role| role["rules"][0]["resources"] == json!(["configmaps"]),
    )?;
    scene.wait(
        "the Secret to be back",
        LEADS_WITHIN,
        ("secret", "skupper-site-server"),
        |_| true,
    )?;
    scene.wait(
        "the late grant to be processed",
        LEADS_WITHIN,
        ("accessgrant", "late"),
        |grant| !text(&grant["status"]["code"]).is_empty(),
    )?;
    Ok(())
}

fn damage_is_done(scene: &Scene) -> Result<()> {
    scene.merge("role", "skupper-router", &json!({"rules": null}))?;
    scene.delete("secret", "skupper-site-server")?;
    scene.apply([ours("AccessGrant", "late", &json!({}))])
}

/// Deletes the operator's pod, and waits until another one is ready and leads.
fn replace_operator(scene: &Scene, way: &str) -> Result<()> {
    let kubectl = &scene.kubectl;
    let lease = ["lease", install::DEPLOYMENT, "--namespace", NAMESPACE];
    let holder = |lease: &Value| text(&lease["spec"]["holderIdentity"]).to_owned();
    let before = kubectl.find(&lease)?.context("the Lease")?;
    let grace = if way == "--force" {
        "--grace-period=0"
    } else {
        "--grace-period=-1"
    };
    kubectl.run(&[
        "delete",
        "pods",
        install::SELECTOR,
        "--namespace",
        NAMESPACE,
        way,
        grace,
    ])?;
    let what = "another operator to lead";
    kubectl.wait_for(what, LEADS_WITHIN, &lease, |lease| {
        !holder(lease).is_empty() && holder(lease) != holder(&before)
    })?;
    let deployment = ["deployment", install::DEPLOYMENT, "--namespace", NAMESPACE];
    let what = "the operator to be ready";
    kubectl
        .wait_for(what, LEADS_WITHIN, &deployment, install::is_rolled_out)
        .map(drop)
}

/// All that is ours but the operator itself, whose pods come and go.
fn census(bed: &Bed, namespaces: &[&str]) -> Result<Census> {
    let mut census = Census::take(&bed.kubectl(), namespaces)?;
    let is_operator = |name: &str| {
        let part = |kind: &str| name.starts_with(&format!("{NAMESPACE}/{kind}/"));
        part("Pod") || part("ReplicaSet") || part("Deployment") || part("EndpointSlice")
    };
    census.0.retain(|name, _| !is_operator(name));
    Ok(census)
}
