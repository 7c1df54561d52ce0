//! How does the operator get into a cluster? As a user would install it, with what the cluster needs patched in.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::kubectl::Kubectl;
use crate::{interrupt, wait, workspace};

/// The operator's namespace.
pub const NAMESPACE: &str = "spanwire";
/// The operator's Deployment.
pub const DEPLOYMENT: &str = "spanwire-controller";
/// What picks the operator's pods.
pub const SELECTOR: &str = "--selector=app.kubernetes.io/name=spanwire-controller";
const READY_WITHIN: Duration = Duration::from_mins(3);

/// What is put into the manifests of `config/default`.
#[derive(Clone, Debug, Default)]
pub struct Settings<'a> {
    /// Image of the operator and the adaptor.
    pub image: Option<&'a str>,
    /// Image of the router.
    pub router_image: Option<&'a str>,
    /// More arguments for the operator.
    pub args: Vec<String>,
    /// How many operators run in the cluster, if not as many as the manifests say. With 0, its objects are there for one
    /// that runs elsewhere.
    pub replicas: Option<u8>,
}

/// Installs the custom resource definitions alone.
pub fn definitions(kubectl: &Kubectl) -> Result<()> {
    let crds = workspace::root().join("crds");
    kubectl
        .run(&[
            "apply",
            "--server-side",
            "--kustomize",
            &crds.to_string_lossy(),
        ])
        .map(drop)
}

/// Installs definitions, rights and the operator, and waits until it is ready.
///
/// `scratch` is a folder for the patched manifests.
pub fn operator(kubectl: &Kubectl, settings: &Settings<'_>, scratch: &Path) -> Result<()> {
    let base = workspace::relative(&workspace::root().join("config/default"), scratch);
    std::fs::create_dir_all(scratch).with_context(|| format!("make {}", scratch.display()))?;
    let path = scratch.join("kustomization.yaml");
    std::fs::write(&path, serde_json::to_vec_pretty(&overlay(&base, settings))?)
        .with_context(|| format!("write {}", path.display()))?;
    kubectl.run(&[
        "apply",
        "--server-side",
        "--kustomize",
        &scratch.to_string_lossy(),
    ])?;
    await_ready(kubectl)
}

/// Waits for the operator's Deployment; if it does not come, says what its pods and its log say.
fn await_ready(kubectl: &Kubectl) -> Result<()> {
    let args = ["deployment", DEPLOYMENT, "--namespace", NAMESPACE];
    let ready = wait::until("the operator to be ready", READY_WITHIN, || {
        Ok(kubectl.find(&args)?.filter(is_rolled_out))
    });
    if ready.is_ok() || interrupt::is_asked() {
        return ready.map(drop);
    }
    let mut said = String::new();
    for args in [
        ["get", "pods", "--output=wide"],
        ["logs", "--tail=20", "--prefix"],
    ] {
        let answer = kubectl.attempt(
            &[&args[..], &["--namespace", NAMESPACE, SELECTOR]].concat(),
            None,
        )?;
        said.extend([answer.stdout, answer.stderr]);
    }
    ready.map(drop).with_context(|| said.trim().to_owned())
}

/// Has so many operators run, and waits until they are ready and all others gone.
pub fn scale(kubectl: &Kubectl, replicas: usize) -> Result<()> {
    let wanted = format!("--replicas={replicas}");
    kubectl.run(&[
        "scale",
        "deployment",
        DEPLOYMENT,
        &wanted,
        "--namespace",
        NAMESPACE,
    ])?;
    settled(kubectl, replicas)
}

/// Replaces every operator by a new one, as a person would, and waits until the new ones are ready and the old ones gone.
pub fn restart(kubectl: &Kubectl) -> Result<()> {
    let deployment = format!("deployment/{DEPLOYMENT}");
    let before = pods(kubectl)?;
    kubectl.run(&["rollout", "restart", &deployment, "--namespace", NAMESPACE])?;
    settled(kubectl, before.len())?;
    let uid = |pod: &Value| pod["metadata"]["uid"].clone();
    let after: Vec<Value> = pods(kubectl)?.iter().map(uid).collect();
    ensure!(
        !before.iter().map(uid).any(|pod| after.contains(&pod)),
        "an operator was left as it was"
    );
    Ok(())
}

/// The operator's pods, those that are on their way out too.
pub fn pods(kubectl: &Kubectl) -> Result<Vec<Value>> {
    kubectl.items(&["pods", SELECTOR, "--namespace", NAMESPACE])
}

fn settled(kubectl: &Kubectl, replicas: usize) -> Result<()> {
    await_ready(kubectl)?;
    wait::until("the operators before to be gone", READY_WITHIN, || {
        Ok((pods(kubectl)?.len() == replicas).then_some(()))
    })
}

/// Whether every replica of a Deployment is of the newest template and available.
pub fn is_rolled_out(deployment: &Value) -> bool {
    let status = &deployment["status"];
    let wanted = deployment["spec"]["replicas"].as_i64().unwrap_or(1);
    let counts = ["updatedReplicas", "availableReplicas", "replicas"];
    status["observedGeneration"] == deployment["metadata"]["generation"]
        && counts
            .iter()
            .all(|count| status[count].as_i64().unwrap_or(0) == wanted)
}

fn overlay(base: &Path, settings: &Settings<'_>) -> Value {
    let mut container = json!({"name": "controller"});
    let mut environment = Vec::new();
    if let Some(image) = settings.image {
        container["image"] = image.into();
        environment.push(json!({"name": "SKUPPER_KUBE_ADAPTOR_IMAGE", "value": image}));
    }
    if let Some(image) = settings.router_image {
        environment.push(json!({"name": "SKUPPER_ROUTER_IMAGE", "value": image}));
    }
    container["args"] = json!(settings.args);
    container["env"] = json!(environment);
    let mut patch = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": DEPLOYMENT, "namespace": NAMESPACE},
        "spec": {"template": {"spec": {"containers": [container]}}},
    });
    if let Some(replicas) = settings.replicas {
        patch["spec"]["replicas"] = replicas.into();
    }
    json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [base],
        "patches": [{"patch": patch.to_string()}],
    })
}
