//! How does upstream's controller run beside ours? Outside its cluster too, in a namespace that is its own and its site's.
//!
//! `SPANWIRE_SKUPPER_CONTROLLER` names its binary, built outside this project from its public sources.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::kubectl::{Kubectl, text};
use crate::operator::{self, Operator};
use crate::{namespace, wait};

pub const VARIABLE: &str = "SPANWIRE_SKUPPER_CONTROLLER";
const NAME: &str = "skupper-controller";
/// Kinds that it waits for before it does anything, and that this project has none of: plural and kind.
const KINDS: [(&str, &str); 4] = [
    ("attachedconnectorbindings", "AttachedConnectorBinding"),
    ("attachedconnectors", "AttachedConnector"),
    ("connectors", "Connector"),
    ("listeners", "Listener"),
];
const WITHIN: Duration = Duration::from_mins(1);

/// The controller that the environment names, if it names one.
pub fn named() -> Result<Option<PathBuf>> {
    let Some(program) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) else {
        return Ok(None);
    };
    let program = PathBuf::from(program);
    let found = program.canonicalize();
    found
        .map(Some)
        .with_context(|| format!("{VARIABLE}={}", program.display()))
}

/// Starts one that looks at one namespace only, with the flags of its manifests.
pub fn start(namespace: &str, program: &Path, kubectl: &Kubectl, logs: &Path) -> Result<Operator> {
    for (plural, kind) in KINDS {
        kubectl.apply(&definition(plural, kind).to_string(), &[])?;
    }
    namespace::make(kubectl, &[namespace])?;
    operator::give(kubectl, namespace, NAME)?;
    // It takes its own pod for what its grant server is reached by.
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": NAME, "namespace": namespace, "labels": {"application": NAME}},
        "spec": {"containers": [{"name": "controller", "image": "controller"}]},
    });
    wait::until("its pod", WITHIN, || {
        // Until the namespace has its ServiceAccount, no pod is let in.
        Ok(kubectl.apply(&pod.to_string(), &[]).ok())
    })?;
    let args = [
        format!("--namespace={namespace}"),
        format!("--watch-namespace={namespace}"),
        format!("--name={NAME}"),
        format!("--grant-server-podname={NAME}"),
        "--enable-grants".to_owned(),
        "--grant-server-autoconfigure".to_owned(),
        "--enabled-access-types=nodeport".to_owned(),
        "--cluster-host=127.0.0.1".to_owned(),
        "--disable-metrics".to_owned(),
    ];
    Operator::run(program, args.into(), kubectl.kubeconfig(), NAME, logs)
}

/// How often upstream's server was asked for a grant, by its own account.
pub fn requests(controller: &Operator, grant: &Value) -> Result<usize> {
    let key = format!("key={}", text(&grant["metadata"]["uid"]));
    let log = controller.log()?;
    let mut asked: Vec<&str> = log.lines().collect();
    asked.retain(|line| line.contains("Checking access token") && line.contains(&key));
    Ok(asked.len())
}

/// The definition of a kind whose objects may hold anything.
fn definition(plural: &str, kind: &str) -> Value {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.skupper.io")},
        "spec": {
            "group": "skupper.io",
            "names": {"plural": plural, "kind": kind},
            "scope": "Namespaced",
            "versions": [{
                "name": "v2alpha1",
                "served": true,
                "storage": true,
                "schema": {"openAPIV3Schema": schema},
            }],
        },
    })
}
