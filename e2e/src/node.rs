//! What makes a node? containerd, a kubelet, kube-proxy and CoreDNS, with the settings that let them run beside
//! others on one machine.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::command;
use crate::control_plane::Ground;
use crate::daemon::Daemon;
use crate::images;
use crate::wait;

/// What the kubelet is called, as a program and as a caller of the API server.
pub const KUBELET: &str = "kubelet";
const SOCKET: &str = "/run/containerd/containerd.sock";
const WITHIN: Duration = Duration::from_mins(1);
/// See statfs(2).
const OVERLAYFS_SUPER_MAGIC: rustix::fs::FsWord = 0x794c_7630;
const CNI_PLUGINS: &str = "/usr/lib/cni";

/// Starts containerd and imports the image that holds pods' namespaces open.
pub fn containerd(ground: &Ground<'_>, pause: &Path) -> Result<Daemon> {
    let network = ground.dir.join("state/cni");
    write_json(
        &network.join("10-spanwire.conflist"),
        &cni(&ground.place.pods()),
    )?;
    let config = ground.dir.join("state/containerd.toml");
    write(
        &config,
        &containerd_config(&network, is_overlay(ground.dir)?),
    )?;

    let mut command = ground.program("containerd");
    command.arg("--config").arg(&config);
    let mut daemon = ground.start(&command)?;
    let socket = ground
        .dir
        .join("state")
        .join(SOCKET.trim_start_matches('/'));
    wait::until("containerd", WITHIN, || {
        daemon.check()?;
        Ok(socket.exists().then_some(()))
    })?;
    import(ground, pause)?;
    Ok(daemon)
}

/// Brings an image archive into the node's store.
pub fn import(ground: &Ground<'_>, archive: &Path) -> Result<()> {
    let mut command = ground.keeper.enter();
    command
        .args(["ctr", "--namespace", "k8s.io", "images", "import"])
        .arg(archive);
    command::output(&mut command, WITHIN * 4).map(drop)
}

/// Starts the rest of the node; the API server must be ready.
pub fn start(ground: &Ground<'_>) -> Result<Vec<Daemon>> {
    Ok(vec![
        kubelet(ground, &format!("{KUBELET}.kubeconfig"))?,
        kube_proxy(ground)?,
        coredns(ground)?,
    ])
}

/// Starts the kubelet, by the kubeconfig of that name.
pub fn kubelet(ground: &Ground<'_>, kubeconfig: &str) -> Result<Daemon> {
    let config = ground.dir.join("state/kubelet.json");
    write_json(&config, &kubelet_config(ground))?;
    let mut command = ground.program(KUBELET);
    command.args([
        format!("--config={}", config.display()),
        ground.pki.flag("kubeconfig", kubeconfig),
        format!("--hostname-override={}", ground.place.node()),
        format!("--node-ip={}", ground.place.address()),
    ]);
    ground.start(&command)
}

fn kube_proxy(ground: &Ground<'_>) -> Result<Daemon> {
    let config = ground.dir.join("state/kube-proxy.json");
    write_json(&config, &kube_proxy_config(ground))?;
    let mut command = ground.program("kube-proxy");
    command.arg(format!("--config={}", config.display()));
    ground.start(&command)
}

/// CoreDNS runs beside the kubelet, not in a pod: one image and one Deployment less to wait for.
fn coredns(ground: &Ground<'_>) -> Result<Daemon> {
    let config = ground.dir.join("state/Corefile");
    let kubeconfig = ground.pki.path("coredns.kubeconfig");
    let corefile = format!(
        ".:53 {{\n bind {}\n errors\n health 127.0.0.1:8080\n ready 127.0.0.1:8181\n \
         kubernetes cluster.local in-addr.arpa {{\n  kubeconfig {}\n  ttl 1\n }}\n \
         cache 5 {{\n  denial 1000 1 1\n }}\n}}\n",
        ground.place.address(),
        kubeconfig.display(),
    );
    write(&config, &corefile)?;
    let mut command = ground.program("coredns");
    command.arg("-conf").arg(&config);
    ground.start(&command)
}

/// What CoreDNS may read, as an object to apply.
pub fn coredns_rights() -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "coredns"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "coredns"}],
    })
}

/// Point-to-point links rather than a bridge: replies to Service traffic need no bridge netfilter.
fn cni(pods: &str) -> Value {
    json!({
        "cniVersion": "0.4.0",
        "name": "spanwire",
        "plugins": [
            {"type": "ptp", "ipMasq": false, "ipam": {
                "type": "host-local",
                "dataDir": "/run/cni",
                "ranges": [[{"subnet": pods}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            }},
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    })
}

/// Whether files there are on an overlay, as inside a container; the kernel takes no second one on top of it.
fn is_overlay(dir: &Path) -> Result<bool> {
    let facts = rustix::fs::statfs(dir).with_context(|| format!("look at {}", dir.display()))?;
    Ok(facts.f_type == OVERLAYFS_SUPER_MAGIC)
}

/// `restrict_oom_score_adj`: lowering the score takes CAP_SYS_RESOURCE, which containers of CI systems often lack.
fn containerd_config(network: &Path, is_overlay: bool) -> String {
    format!(
        r#"version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]

[grpc]
address = "{SOCKET}"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
stream_server_address = "127.0.0.1"

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{CNI_PLUGINS}"
conf_dir = "{network}"

[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "{snapshotter}"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
"#,
        pause = images::PAUSE,
        snapshotter = if is_overlay { "native" } else { "overlayfs" },
        network = network.display(),
    )
}

fn kubelet_config(ground: &Ground<'_>) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": ground.place.address(),
        "healthzBindAddress": "127.0.0.1",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": ground.pki.path("ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": ground.pki.path("kubelet-server.crt"),
        "tlsPrivateKeyFile": ground.pki.path("kubelet-server.key"),
        "containerRuntimeEndpoint": format!("unix://{SOCKET}"),
        "clusterDomain": "cluster.local",
        "clusterDNS": [ground.place.address()],
        "resolvConf": "",
        "failCgroupV1": false,
        "failSwapOn": false,
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": false,
        "enforceNodeAllocatable": [],
        "oomScoreAdj": 0,
        "maxOpenFiles": 20000,
        "makeIPTablesUtilChains": false,
        // A full disk must not cost the imported images, which no registry can give back, nor the pods.
        "imageGCHighThresholdPercent": 100,
        "imageMinimumGCAge": "24h",
        "imageMaximumGCAge": "0s",
        "evictionHard": {
            "memory.available": "0%",
            "nodefs.available": "0%",
            "nodefs.inodesFree": "0%",
            "imagefs.available": "0%",
            "imagefs.inodesFree": "0%",
        },
        "registryPullQPS": 0,
        "eventRecordQPS": 0,
    })
}

fn kube_proxy_config(ground: &Ground<'_>) -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": ground.pki.path("kube-proxy.kubeconfig")},
        "hostnameOverride": ground.place.node(),
        "mode": "nftables",
        "nftables": {"minSyncPeriod": "100ms", "syncPeriod": "30s"},
        "detectLocalMode": "ClusterCIDR",
        "clusterCIDR": ground.place.pods(),
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
            "udpTimeout": "0s",
            "udpStreamTimeout": "0s",
        },
    })
}

fn write_json(path: &Path, value: &Value) -> Result<()> {
    write(path, &serde_json::to_string_pretty(value)?)
}

fn write(path: &Path, content: &str) -> Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    }
    std::fs::write(path, content).with_context(|| format!("write {}", path.display()))
}
