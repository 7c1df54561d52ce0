//! Does everybody touch only what he may and must? The router pods, and the operator itself.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use spanwire_e2e::audit::Request;
use spanwire_e2e::kubectl::Kubectl;
use spanwire_e2e::rest;
use spanwire_e2e::scene::{self, Scene, ours, text};

const OPERATOR: &str = "system:serviceaccount:spanwire:spanwire-controller";
const REPORT: &str = "skupper-router-report";

#[test]
fn router_pods_hold_no_secret_verb() -> Result<()> {
    scene::play("rights-router", |scene| {
        scene.apply([ours("Site", "west", &json!({"linkAccess": "default"}))])?;
        // In a namespace that enforces `restricted`: a pod that asked for more would not be there.
        scene.holds("site", "west", "Ready")?;

        let router = as_account(scene, "skupper-router")?;
        let may = |args: &[&str]| -> Result<bool> {
            let args = [args, &["--namespace", &scene.namespace]].concat();
            let answer = router.attempt(&args, None)?;
            let said = format!("{}{}", answer.stdout, answer.stderr);
            ensure!(
                answer.status.success() || said.contains("Forbidden"),
                "neither done nor forbidden: {said}"
            );
            Ok(answer.status.success())
        };
        let note = json!({"data": {"a-note": "of the router"}}).to_string();
        let patch = |name| ["patch", "configmap", name, "--type=merge", "--patch", &note];
        ensure!(may(&["get", "configmap", REPORT])?);
        ensure!(may(&patch(REPORT))?);
        ensure!(!may(&["get", "configmap", "skupper-router"])?);
        ensure!(!may(&patch("skupper-router"))?);
        ensure!(!may(&["get", "configmaps"])?);
        ensure!(!may(&["delete", "configmap", REPORT])?);
        for secret in ["skupper-router-credentials", "skupper-site-ca"] {
            ensure!(!may(&["get", "secret", secret])?);
            ensure!(!may(&["delete", "secret", secret])?);
        }
        ensure!(!may(&["get", "secrets"])?);
        ensure!(!may(&["get", "pods"])?);
        ensure!(!may(&["get", "secrets", "--all-namespaces"])?);
        Ok(())
    })
}

#[test]
fn only_publish_writes_status() -> Result<()> {
    scene::play("rights-status", |scene| {
        let writes = live_through_something(scene)?;
        let (statuses, others): (Vec<_>, Vec<_>) = writes
            .iter()
            .partition(|request| request.object_ref.subresource == "status");
        ensure!(statuses.len() > 5, "too little happened: {statuses:?}");
        for status in &statuses {
            ensure!(
                status.verb == "patch" && status.uri.contains("fieldManager=spanwire"),
                "{status}: {}",
                status.uri
            );
            ensure!(is_of_our_kinds(status), "a status of another: {status}");
        }
        for write in others {
            ensure!(
                write.verb != "update" && write.verb != "deletecollection",
                "{write}"
            );
            // What a user wrote, only he writes.
            let users = ["sites", "accessgrants", "accesstokens"];
            ensure!(
                !users.contains(&write.object_ref.resource.as_str()),
                "{write}"
            );
        }
        Ok(())
    })
}

#[test]
fn only_owned_objects_are_touched() -> Result<()> {
    scene::play("rights-owned", |scene| {
        // They look like ours.
        let labels =
            json!({"app.kubernetes.io/part-of": "skupper", "skupper.io/component": "router"});
        let stranger = |kind: &str| {
            json!({
                "apiVersion": "v1",
                "kind": kind,
                "metadata": {"name": "stranger", "labels": labels},
            })
        };
        scene.apply([
            stranger("Secret"),
            stranger("ConfigMap"),
            stranger("ServiceAccount"),
        ])?;
        let writes = live_through_something(scene)?;
        let touched: BTreeSet<(&str, &str)> = writes
            .iter()
            .filter(|request| request.object_ref.subresource.is_empty())
            .map(|request| &request.object_ref)
            .filter(|object| object.resource != "events")
            .map(|object| (object.resource.as_str(), object.name.as_str()))
            .collect();
        ensure!(touched.len() > 15, "too little happened: {touched:?}");
        for (resource, name) in touched {
            // What has been deleted is judged by the kinds that may be.
            if let Some(object) = scene.find(resource, name)? {
                let is_ours = is_ours(scene, &object)?;
                ensure!(is_ours, "{resource} {name} is not ours, and was written");
            }
        }
        let deleted = writes.iter().filter(|request| request.verb == "delete");
        let deleted: Vec<&str> = deleted
            .map(|request| request.object_ref.resource.as_str())
            .collect();
        let made = ["routeraccesses", "securedaccesses", "certificates"];
        ensure!(
            !deleted.is_empty() && deleted.iter().all(|resource| made.contains(resource)),
            "{deleted:?}"
        );
        Ok(())
    })
}

/// A site comes up, is linked to, is damaged and changed: what the operator wrote for it.
fn live_through_something(scene: &Scene) -> Result<Vec<Request>> {
    let start = scene.bed.audit().mark()?;
    scene.apply([
        ours("Site", "west", &json!({"linkAccess": "default"})),
        ours("AccessGrant", "grant", &json!({"redemptionsAllowed": 1})),
    ])?;
    scene.holds("site", "west", "Ready")?;
    let grant = scene.holds("accessgrant", "grant", "Ready")?;
    let status = &grant["status"];
    let token = json!({"url": status["url"], "code": status["code"], "ca": status["ca"]});
    // To itself: the link is of no use, the redemption is one like any other.
    scene.apply([ours("AccessToken", "token", &token)])?;
    scene.holds("accesstoken", "token", "Redeemed")?;
    scene.merge("role", "skupper-router", &json!({"rules": null}))?;
    scene.wait(
        "the Role",
        scene::WITHIN,
        ("role", "skupper-router"),
        |role| role["rules"][0]["resources"] == json!(["configmaps"]),
    )?;
    scene.merge("site", "west", &json!({"spec": {"linkAccess": "none"}}))?;
    let namespaces = [scene.namespace.as_str()];
    rest::reached(scene.bed, &namespaces)?;
    let left = scene.find("routeraccess", "skupper-router")?;
    ensure!(left.is_none(), "the access is still there");
    let mut writes = rest::writes(scene.bed, start, &namespaces)?;
    writes.retain(|request| request.user.username == OPERATOR);
    Ok(writes)
}

fn is_of_our_kinds(request: &Request) -> bool {
    let kinds = [
        "sites",
        "links",
        "routeraccesses",
        "securedaccesses",
        "certificates",
        "accessgrants",
        "accesstokens",
    ];
    kinds.contains(&request.object_ref.resource.as_str())
}

/// Whether an object hangs on one of our kinds, through whatever else.
fn is_ours(scene: &Scene, object: &Value) -> Result<bool> {
    let owners = object["metadata"]["ownerReferences"].as_array();
    for owner in owners.into_iter().flatten() {
        if text(&owner["apiVersion"]).starts_with("skupper.io/") {
            return Ok(true);
        }
        let (kind, name) = (text(&owner["kind"]), text(&owner["name"]));
        if let Some(owner) = scene.find(kind, name)? {
            return is_ours(scene, &owner);
        }
    }
    Ok(false)
}

/// kubectl with nothing but a token of a ServiceAccount.
fn as_account(scene: &Scene, account: &str) -> Result<Kubectl> {
    let token = scene.run(&["create", "token", account])?;
    let mut config: Value = scene.kubectl.json(&["config", "view", "--raw"])?;
    let user = config["contexts"][0]["context"]["user"].clone();
    config["users"] = json!([{"name": user, "user": {"token": token.trim()}}]);
    let path: PathBuf = scene
        .bed
        .scratch(&scene.namespace)?
        .join(format!("{account}.json"));
    std::fs::write(&path, config.to_string())
        .with_context(|| format!("write {}", path.display()))?;
    Ok(Kubectl::new(&scene.bed.bin.join("kubectl"), &path))
}
