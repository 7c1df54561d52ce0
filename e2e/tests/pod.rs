//! What do the real kubelet and a router's containers do when things come late, change at once, or die?

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use spanwire_e2e::kubectl::condition;
use spanwire_e2e::processes::{self, ROUTER};
use spanwire_e2e::scenario::{self, FAULTLESS};
use spanwire_e2e::scene::{self, Scene, ours, text};
use spanwire_e2e::{rest, tally, wait};

/// Longer than the first pauses between two nudges.
const REST: Duration = Duration::from_secs(10);

#[test]
fn containers_are_held_until_credentials_and_configuration_exist() -> Result<()> {
    scene::play("pod-source", |source| {
        source.apply([ours("Site", "west", &json!({}))])?;
        source.holds("site", "west", "Ready")?;
        scene::play("pod-held", |held| {
            let deployment = source.get("deployment", "skupper-router")?;
            let mut spec = deployment["spec"]["template"]["spec"].clone();
            spec["terminationGracePeriodSeconds"] = json!(0);
            held.apply([
                json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "skupper-router"}}),
                json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "held"}, "spec": spec}),
            ])?;
            held.wait(
                "the kubelet to look",
                scene::WITHIN,
                ("pod", "held"),
                |pod| waits(pod) == ["ContainerCreating", "ContainerCreating"],
            )?;
            copy(source, held, "configmap", "skupper-router")?;
            refuses_to_mount(held, "skupper-router-credentials")?;
            let pod = held.get("pod", "held")?;
            ensure!(waits(&pod).len() == 2, "{}", pod["status"]);

            copy(source, held, "secret", "skupper-router-credentials")?;
            let pod = held.wait(
                "the router to run",
                scene::WITHIN * 2,
                ("pod", "held"),
                |pod| condition(pod, "Ready").is_some_and(|ready| ready["status"] == "True"),
            )?;
            let restarts: Vec<&Value> = containers(&pod).map(|one| &one["restartCount"]).collect();
            ensure!(restarts == [0, 0], "{restarts:?}");
            Ok(())
        })
    })
}

#[test]
fn a_new_link_touches_no_pod_and_breaks_no_connection() -> Result<()> {
    scenario::linked("pod-link", |bed, scenario| {
        let kubectl = bed.kubectl();
        let deployment = [
            "deployment",
            "skupper-router",
            "--namespace",
            &scenario.east,
        ];
        let before = kubectl.find(&deployment)?.context("a Deployment")?;
        let pod = scenario.router_pod(&scenario.east)?;
        let open = processes::of_pod(&pod, &ROUTER)?.connections();
        ensure!(!open.is_empty(), "the link has no connection");

        let link = kubectl.items(&["links.skupper.io", "--namespace", &scenario.east])?;
        let link = link.first().context("a Link")?;
        let mut more = ours("Link", "more", &link["spec"]);
        for endpoint in more["spec"]["endpoints"]
            .as_array_mut()
            .into_iter()
            .flatten()
        {
            endpoint["host"] = json!("10.96.255.254");
        }
        kubectl.apply(&more.to_string(), &["--namespace", &scenario.east])?;
        wait::until("the new link to be dialled", scene::WITHIN, || {
            let reports = tally::reports(&kubectl, &scenario.east)?;
            Ok(reports
                .values()
                .any(|report| report.links.len() == 2)
                .then_some(()))
        })?;

        let after = kubectl.find(&deployment)?.context("a Deployment")?;
        ensure!(after["metadata"]["generation"] == before["metadata"]["generation"]);
        ensure!(scenario.router_pod(&scenario.east)? == pod, "another pod");
        let still_open = processes::of_pod(&pod, &ROUTER)?.connections();
        ensure!(
            open.is_subset(&still_open),
            "{open:?} became {still_open:?}"
        );
        let tally = scenario.tally()?;
        ensure!(tally == FAULTLESS, "{tally:?}");
        Ok(())
    })
}

#[test]
fn rewritten_again_and_again_the_router_ends_as_wanted() -> Result<()> {
    scenario::linked("pod-rewrites", |_, scenario| {
        scenario.withstands_rewrites().map(drop)
    })
}

#[test]
fn an_account_that_was_made_anew_silences_nobody() -> Result<()> {
    scene::play("pod-account", |scene| {
        scene.apply([ours("Site", "west", &json!({}))])?;
        scene.holds("site", "west", "Ready")?;
        scene.delete("serviceaccount", "skupper-router")?;
        // Ready only once an adaptor says that the port is open, which the old pod no longer can.
        let access = json!({
            "accessType": "local",
            "generateTlsCredentials": true,
            "tlsCredentials": "late",
            "roles": [{"name": "inter-router", "port": 55690}],
        });
        scene.apply([ours("RouterAccess", "late", &access)])?;
        scene.holds("routeraccess", "late", "Ready")?;
        rest::reached(scene.bed, &[&scene.namespace])?;
        rest::lasts(scene.bed, &[&scene.namespace], REST)
    })
}

fn copy(from: &Scene, to: &Scene, kind: &str, name: &str) -> Result<()> {
    let object = from.get(kind, name)?;
    let mut copy = json!({"metadata": {"name": name}});
    for field in ["apiVersion", "kind", "data", "type"] {
        if !object[field].is_null() {
            copy[field] = object[field].clone();
        }
    }
    to.apply([copy])
}

/// Waits until the kubelet says of the pod `held` that it misses an object.
fn refuses_to_mount(scene: &Scene, object: &str) -> Result<()> {
    let field = "--field-selector=reason=FailedMount";
    wait::until(
        &format!("the kubelet to miss {object}"),
        scene::WITHIN,
        || {
            let events = scene.run(&[
                "get",
                "events",
                field,
                "--output=jsonpath={.items[*].message}",
            ])?;
            Ok(events
                .contains(&format!("\"{object}\" not found"))
                .then_some(()))
        },
    )
}

fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    let statuses = pod["status"]["containerStatuses"].as_array();
    statuses.into_iter().flatten()
}

/// Why containers wait.
fn waits(pod: &Value) -> Vec<&str> {
    containers(pod)
        .map(|container| text(&container["state"]["waiting"]["reason"]))
        .filter(|reason| !reason.is_empty())
        .collect()
}
