//! How are etcd, the API server, the controller manager and the scheduler started?

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;

use crate::binaries::Binaries;
use crate::command;
use crate::daemon::Daemon;
use crate::keeper::Keeper;
use crate::network::{self, Place};
use crate::pki::Pki;
use crate::wait;

const READY_WITHIN: Duration = Duration::from_mins(3);
const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// Where a cluster's programs find each other and their files.
#[derive(Clone, Copy, Debug)]
pub struct Ground<'a> {
    pub keeper: &'a Keeper,
    pub binaries: &'a Binaries,
    pub pki: &'a Pki,
    pub place: Place,
    /// `target/<name>`.
    pub dir: &'a Path,
}

impl Ground<'_> {
    pub(crate) fn start(&self, program: &Command) -> Result<Daemon> {
        Daemon::start(self.keeper, program, &self.dir.join("logs"))
    }

    pub(crate) fn program(&self, name: &str) -> Command {
        Command::new(self.binaries.program(name))
    }

    pub(crate) fn state(&self, name: &str) -> String {
        self.dir.join("state").join(name).display().to_string()
    }
}

/// Starts etcd and the API server, and waits until the latter is ready.
pub fn api_server(ground: &Ground<'_>, emulated_version: Option<&str>) -> Result<[Daemon; 2]> {
    let mut etcd = ground.start(&etcd(ground))?;
    let mut server = ground.start(&kube_apiserver(ground, emulated_version)?)?;
    let url = format!(
        "https://{}:{}/readyz",
        ground.place.address(),
        network::API_PORT
    );
    wait::until("the API server to be ready", READY_WITHIN, || {
        etcd.check()?;
        server.check()?;
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--fail", "--max-time", "2", "--cacert"])
            .arg(ground.pki.path("ca.crt"));
        curl.arg("--cert").arg(ground.pki.path("admin.crt"));
        curl.arg("--key").arg(ground.pki.path("admin.key"));
        let answer = command::answer(curl.arg(&url), None, Duration::from_secs(5))?;
        Ok(answer.status.success().then_some(()))
    })?;
    Ok([etcd, server])
}

/// Starts the controller manager, and the scheduler if there is a node to schedule to.
pub fn controllers(ground: &Ground<'_>, with_scheduler: bool) -> Result<Vec<Daemon>> {
    let mut daemons = vec![ground.start(&kube_controller_manager(ground))?];
    if with_scheduler {
        daemons.push(ground.start(&kube_scheduler(ground))?);
    }
    Ok(daemons)
}

fn etcd(ground: &Ground<'_>) -> Command {
    let mut command = ground.program("etcd");
    command.args([
        "--data-dir",
        &ground.state("etcd"),
        "--unsafe-no-fsync",
        "--log-level=warn",
        "--listen-client-urls=http://127.0.0.1:2379",
        "--advertise-client-urls=http://127.0.0.1:2379",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--initial-advertise-peer-urls=http://127.0.0.1:2380",
        "--initial-cluster=default=http://127.0.0.1:2380",
    ]);
    command
}

fn kube_apiserver(ground: &Ground<'_>, emulated_version: Option<&str>) -> Result<Command> {
    let policy = ground.state("audit-policy.json");
    std::fs::write(&policy, audit_policy().to_string())
        .with_context(|| format!("write {policy}"))?;
    let pki = ground.pki;
    let address = ground.place.address();
    let mut command = ground.program("kube-apiserver");
    command.args([
        "--etcd-servers=http://127.0.0.1:2379".to_owned(),
        format!("--bind-address={address}"),
        format!("--advertise-address={address}"),
        format!("--secure-port={}", network::API_PORT),
        format!("--service-cluster-ip-range={}", network::SERVICES),
        "--authorization-mode=Node,RBAC".to_owned(),
        "--enable-admission-plugins=NodeRestriction".to_owned(),
        "--allow-privileged=true".to_owned(),
        "--shutdown-delay-duration=0s".to_owned(),
        "--profiling=false".to_owned(),
        pki.flag("client-ca-file", "ca.crt"),
        pki.flag("tls-cert-file", "apiserver.crt"),
        pki.flag("tls-private-key-file", "apiserver.key"),
        format!("--service-account-issuer={ISSUER}"),
        pki.flag("service-account-key-file", "service-account.pub"),
        pki.flag("service-account-signing-key-file", "service-account.key"),
        pki.flag("kubelet-client-certificate", "apiserver-kubelet.crt"),
        pki.flag("kubelet-client-key", "apiserver-kubelet.key"),
        pki.flag("kubelet-certificate-authority", "ca.crt"),
        "--kubelet-preferred-address-types=InternalIP".to_owned(),
        format!("--audit-policy-file={policy}"),
        format!(
            "--audit-log-path={}",
            ground.dir.join("logs/audit.log").display()
        ),
        // Requests are counted: none may be on its way to the file when somebody looks.
        "--audit-log-mode=blocking".to_owned(),
    ]);
    if let Some(version) = emulated_version {
        command.arg(format!("--emulated-version={version}"));
    }
    Ok(command)
}

/// Every write, with the object that it left where [`crate::history`] needs it, and every read by a service account
/// outside Kubernetes itself.
fn audit_policy() -> serde_json::Value {
    let writes = ["create", "update", "patch", "delete", "deletecollection"];
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {
                "level": "RequestResponse",
                "omitManagedFields": true,
                "verbs": writes,
                "resources": [
                    {"group": "", "resources": ["secrets", "configmaps"]},
                    {"group": "apps", "resources": ["deployments"]},
                ],
            },
            {"level": "Metadata", "verbs": writes},
            {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
            {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
            {"level": "None"},
        ],
    })
}

fn kube_controller_manager(ground: &Ground<'_>) -> Command {
    let pki = ground.pki;
    let mut command = ground.program("kube-controller-manager");
    command.args([
        pki.flag("kubeconfig", "kube-controller-manager.kubeconfig"),
        pki.flag("service-account-private-key-file", "service-account.key"),
        pki.flag("root-ca-file", "ca.crt"),
        "--use-service-account-credentials=true".to_owned(),
        "--leader-elect=false".to_owned(),
        "--bind-address=127.0.0.1".to_owned(),
        // With the default 20 its start takes 5 s instead of 1.
        "--kube-api-qps=1000".to_owned(),
        "--kube-api-burst=1000".to_owned(),
    ]);
    command
}

fn kube_scheduler(ground: &Ground<'_>) -> Command {
    let mut command = ground.program("kube-scheduler");
    command.args([
        ground.pki.flag("kubeconfig", "kube-scheduler.kubeconfig"),
        "--leader-elect=false".to_owned(),
        "--bind-address=127.0.0.1".to_owned(),
        "--kube-api-qps=1000".to_owned(),
        "--kube-api-burst=1000".to_owned(),
    ]);
    command
}
