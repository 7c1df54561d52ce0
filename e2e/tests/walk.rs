//! Do two sites link, rest, and leave nothing behind? The demo's story, on the shared bed.

use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::json;
use spanwire_e2e::bed::Bed;
use spanwire_e2e::kubectl::has_condition;
use spanwire_e2e::namespace::Namespaces;
use spanwire_e2e::scenario::{FAULTLESS, Scenario};
use spanwire_e2e::{rest, wait};

const WITHIN: Duration = Duration::from_mins(2);
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

fn walk(prefix: &str, script: &str) -> Result<()> {
    let bed = Bed::shared()?;
    let scenario = Scenario::new(bed, script, prefix);
    let names = scenario.namespaces();
    let namespaces = Namespaces::make(bed, &names)?;
    let kubectl = bed.kubectl();

    let link = scenario.links()?;
    assert!(
        has_condition(&link, "Ready"),
        "an operational link is ready: {}",
        link["status"]
    );
    for name in names {
        let sites = kubectl.items(&["sites.skupper.io", "--namespace", name])?;
        let [site] = &sites[..] else {
            bail!("{} sites instead of one in {name}", sites.len());
        };
        assert!(has_condition(site, "Ready"), "{}", site["status"]);
    }
    rest::reached(bed, &names)?;
    rest::lasts(bed, &names, REST)?;
    assert_eq!(scenario.tally()?, FAULTLESS);

    scenario.ends()?;
    namespaces.passed()
}
