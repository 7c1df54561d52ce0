//! How long does a new Site take until its router listens with TLS, and in which room? How long does a change take?
//!
//! The operator's part is read from the audit log, the node's from `/proc`: both by this machine's clock.

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use crate::audit::{Mark, Request};
use crate::bed::Bed;
use crate::kubectl::{Kubectl, text};
use crate::processes::{self, Process, ROUTER};
use crate::scene::ours;
use crate::{images, scenario, wait};

const WITHIN: Duration = Duration::from_mins(1);
const LOOK_EVERY: Duration = Duration::from_millis(4);
/// Where a router is managed, and where it accepts links: the last port that opens.
const MANAGEMENT: u16 = 5672;
const LINKS: u16 = 55671;
const DAY: u64 = 24 * 60 * 60;
/// Where a ConfigMap is mounted that is only looked at, and how long the kubelet may take to look again by itself.
const MOUNT: &str = "/mounted";
const MOUNTED_WITHIN: Duration = Duration::from_mins(3);

/// Parts of the time from the Site's creation to the router's TLS listener, one after the other.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// Until the Deployment is written, after everything that it mounts.
    pub operator: Duration,
    /// Until the router's process runs: scheduler, kubelet, containerd.
    pub kubelet: Duration,
    /// Until it can be managed.
    pub router: Duration,
    /// Until it listens: what the adaptor, or by then still the operator, takes.
    pub adaptor: Duration,
}

impl Times {
    pub fn total(&self) -> Duration {
        self.operator + self.kubelet + self.router + self.adaptor
    }
}

/// Makes a Site that accepts links, with a RouterAccess of its own, in an empty namespace, and watches it come up.
pub fn time_site(bed: &Bed, namespace: &str) -> Result<Times> {
    let before: BTreeSet<i32> = routers();
    let mark = bed.audit().mark()?;
    let access = json!({
        "accessType": "nodeport",
        "generateTlsCredentials": true,
        "tlsCredentials": "skupper-site-server",
        "roles": [{"name": "inter-router", "port": LINKS}],
    });
    let objects = [
        ours("Site", "west", &json!({})),
        ours("RouterAccess", "peers", &access),
    ];
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    bed.kubectl()
        .apply(&list.to_string(), &["--namespace", namespace])?;

    let router = moment("the router's process", || {
        routers().difference(&before).next().copied()
    })?;
    let process = Process::new(router.1)?;
    let managed = moment("management", || process.listens(MANAGEMENT).then_some(()))?;
    let listens = moment("the listener", || process.listens(LINKS).then_some(()))?;

    let asked = written(bed, mark, namespace, "sites")?;
    let deployed = written(bed, mark, namespace, "deployments")?;
    Ok(Times {
        operator: deployed.saturating_sub(asked),
        kubelet: router.0.saturating_sub(deployed),
        router: managed.0.saturating_sub(router.0),
        adaptor: listens.0.saturating_sub(managed.0),
    })
}

/// Gives the RouterAccess of [`time_site`] another port, and watches it open: from our write of the configuration on.
pub fn time_change(bed: &Bed, namespace: &str, port: u16) -> Result<Duration> {
    let pod = scenario::router_pod(&bed.kubectl(), namespace)?;
    let router = processes::of_pod(&pod, &ROUTER)?;
    let mark = bed.audit().mark()?;
    let roles = json!([{"name": "inter-router", "port": port}]);
    let patch = json!({"spec": {"roles": roles}}).to_string();
    bed.kubectl().run(&[
        "patch",
        "routeraccess",
        "peers",
        "--type=merge",
        "--patch",
        &patch,
        "--namespace",
        namespace,
    ])?;
    let open = moment("the port", || router.listens(port).then_some(()))?;
    let told = written(bed, mark, namespace, "configmaps")?;
    Ok(open.0.saturating_sub(told))
}

/// A pod of ours that mounts a ConfigMap as a router's mounts its own, and nothing else.
#[derive(Debug)]
pub struct Mounted<'a> {
    kubectl: Kubectl,
    namespace: &'a str,
    process: Process,
    content: u32,
}

impl<'a> Mounted<'a> {
    /// Makes it in a namespace, where the toolbox can be run.
    pub fn start(bed: &Bed, namespace: &'a str) -> Result<Mounted<'a>> {
        let kubectl = bed.kubectl();
        let container = json!({
            "name": "mounted",
            "image": images::TOOLBOX,
            "imagePullPolicy": "Never",
            "command": ["/bin/sleep", "3600"],
            "volumeMounts": [{"name": "mounted", "mountPath": MOUNT}],
        });
        let volume = json!({"name": "mounted", "configMap": {"name": "mounted"}});
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "mounted"},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "containers": [container],
                "volumes": [volume],
            },
        });
        let map = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "mounted"},
            "data": {"content": "0"},
        });
        let list = json!({"apiVersion": "v1", "kind": "List", "items": [map, pod]});
        kubectl.apply(&list.to_string(), &["--namespace", namespace])?;
        let pod = kubectl.find(&["pod", "mounted", "--namespace", namespace])?;
        let uid = pod.context("the pod")?["metadata"]["uid"].clone();
        let process = processes::of_pod(text(&uid), &["sleep"])?;
        Ok(Mounted {
            kubectl,
            namespace,
            process,
            content: 0,
        })
    }

    /// Changes the ConfigMap, and watches the file change: when the kubelet looks by itself, or at once after a nudge.
    pub fn time(&mut self, is_nudged: bool) -> Result<Duration> {
        self.content += 1;
        let content = self.content.to_string();
        self.patch("configmap", &json!({"data": {"content": content}}))?;
        let start = Instant::now();
        if is_nudged {
            let nudge = json!({"metadata": {"annotations": {"nudge": content}}});
            self.patch("pod", &nudge)?;
        }
        let path = format!("{MOUNT}/content");
        wait::until("the kubelet to look", MOUNTED_WITHIN, || {
            Ok((self.process.read(&path)? == content).then_some(()))
        })?;
        Ok(start.elapsed())
    }

    fn patch(&self, kind: &str, patch: &Value) -> Result<()> {
        let (patch, namespace) = (patch.to_string(), self.namespace);
        self.kubectl
            .run(&[
                "patch",
                kind,
                "mounted",
                "--type=merge",
                "--patch",
                &patch,
                "--namespace",
                namespace,
            ])
            .map(drop)
    }
}

fn routers() -> BTreeSet<i32> {
    processes::called(&ROUTER)
}

/// When the first object of a resource was written after the mark.
fn written(bed: &Bed, mark: Mark, namespace: &str, resource: &str) -> Result<Duration> {
    let requests = bed.audit().since(mark)?;
    let first = requests.iter().find(|request| {
        let object = &request.object_ref;
        object.namespace == namespace && object.resource == resource && request.is_write()
    });
    let first = first.with_context(|| format!("nobody wrote {resource}"))?;
    Request::time_of_day(first).context("a time")
}

/// Looks until there is something, and says when that was, as time of the day.
fn moment<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> Result<(Duration, T)> {
    let start = now()?;
    loop {
        let value = look();
        let now = now()?;
        if let Some(value) = value {
            return Ok((now, value));
        }
        if now.saturating_sub(start) > WITHIN {
            bail!("waited {WITHIN:?} in vain for {what}");
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "compared with the API server's times, which are the same clock's"
)]
fn now() -> Result<Duration> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    Ok(Duration::new(now.as_secs() % DAY, now.subsec_nanos()))
}
