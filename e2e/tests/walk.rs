//! Do two sites link, rest, and leave nothing behind? The demo's story, on the shared bed.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use spanwire_e2e::bed::Bed;
use spanwire_e2e::census::Census;
use spanwire_e2e::kubectl::has_condition;
use spanwire_e2e::namespace::Namespaces;
use spanwire_e2e::tally::Tally;
use spanwire_e2e::{command, rest, wait, workspace};

const WITHIN: Duration = Duration::from_mins(2);
const GONE_WITHIN: Duration = Duration::from_mins(1);
/// For how long a settled world is watched.
const REST: Duration = Duration::from_secs(30);

#[test]
fn pods_run_and_find_services_by_name() -> Result<()> {
    let bed = Bed::shared()?;
    let namespaces = Namespaces::make(bed, &["walk-pods"])?;
    let kubectl = bed.kubectl();
    let labels = json!({"app": "greeter"});
    let command = "mkdir -p /tmp/www && echo hello > /tmp/www/index.html && exec httpd -f -p 8080 -h /tmp/www";
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "greeter", "labels": labels},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "greeter",
                "image": "spanwire-toolbox:dev",
                "args": ["-c", command],
                "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
            }],
        },
    });
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "greeter"},
        "spec": {"selector": labels, "ports": [{"port": 80, "targetPort": 8080}]},
    });
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [pod, service]});
    kubectl.apply(&list.to_string(), &["--namespace=walk-pods"])?;
    let pod = ["pod", "greeter", "--namespace=walk-pods"];
    kubectl.wait_for("the pod to be ready", WITHIN, &pod, |pod| {
        has_condition(pod, "Ready")
    })?;

    // Its own Service too: the packet leaves by the door that it comes back through.
    let ask = [
        "exec",
        "greeter",
        "--namespace=walk-pods",
        "--",
        "wget",
        "-q",
        "-O-",
        "http://greeter.walk-pods.svc.cluster.local",
    ];
    let heard = wait::until("an answer by the Service's name", WITHIN, || {
        let answer = kubectl.attempt(&ask, None)?;
        Ok(answer.status.success().then_some(answer.stdout))
    })?;
    assert_eq!(heard.trim(), "hello");
    namespaces.passed()
}

#[test]
fn two_sites_link_rest_and_leave_nothing() -> Result<()> {
    walk("walk-two", "two-sites")
}

#[test]
fn two_sites_of_the_older_version_do_the_same() -> Result<()> {
    walk("walk-old", "two-sites-v1alpha1")
}

fn walk(prefix: &str, scenario: &str) -> Result<()> {
    let bed = Bed::shared()?;
    let (west, east) = (format!("{prefix}-west"), format!("{prefix}-east"));
    let names = [west.as_str(), east.as_str()];
    let namespaces = Namespaces::make(bed, &names)?;
    let kubectl = bed.kubectl();
    let folder = bed.scratch(prefix)?;

    play(bed, &folder, prefix, &format!("{scenario}.sh"))?;
    let link = wait::until("the link to be up", WITHIN, || {
        let links = kubectl.items(&["links.skupper.io", "--namespace", &east])?;
        Ok(links
            .into_iter()
            .find(|link| has_condition(link, "Operational")))
    })?;
    assert!(
        has_condition(&link, "Ready"),
        "an operational link is ready: {}",
        link["status"]
    );
    for name in names {
        let site = only(kubectl.items(&["sites.skupper.io", "--namespace", name])?)?;
        assert!(has_condition(&site, "Ready"), "{}", site["status"]);
    }

    rest::reached(bed, &names)?;
    rest::lasts(bed, &names, REST)?;
    let tally = Tally::take(&kubectl, &names)?;
    assert_eq!(
        tally,
        Tally {
            router_starts: 2,
            router_exits: 0,
            container_restarts: 0
        }
    );

    play(bed, &folder, prefix, &format!("{scenario}-clean-up.sh"))?;
    let left = |census: &Census| census.0.keys().cloned().collect::<Vec<_>>().join(", ");
    wait::until("everything of ours to be gone", GONE_WITHIN, || {
        Ok(Census::take(&kubectl, &names)?.0.is_empty().then_some(()))
    })
    .with_context(|| {
        Census::take(&kubectl, &names)
            .map(|census| left(&census))
            .unwrap_or_default()
    })?;
    namespaces.passed()
}

/// Runs a script of `e2e/scenarios` as a person would.
fn play(bed: &Bed, folder: &Path, prefix: &str, script: &str) -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(bed.bin.clone()).chain(std::env::split_paths(&path));
    let mut shell = Command::new("sh");
    shell
        .arg(workspace::root().join("e2e/scenarios").join(script))
        .current_dir(folder)
        .env("NS_PREFIX", prefix)
        .env("KUBECONFIG", &bed.kubeconfig)
        .env("PATH", std::env::join_paths(folders)?);
    command::output(&mut shell, WITHIN * 2).map(drop)
}

fn only(mut items: Vec<Value>) -> Result<Value> {
    ensure!(items.len() == 1, "{} instead of one", items.len());
    items.pop().context("one")
}
