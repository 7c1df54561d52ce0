//! A real Kubernetes, started in seconds and gone without a trace.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::binaries::Binaries;
use crate::control_plane::{self, Ground};
use crate::daemon::Daemon;
use crate::fault_proxy::{Asked, Fate, FaultProxy, Road};
use crate::keeper::Keeper;
use crate::kubectl::{Kubectl, has_condition};
use crate::network::{self, Place};
use crate::pki::Pki;
use crate::residue::Claim;
use crate::{Say, images, install, interrupt, node, wait, workspace};

const NODE_WITHIN: Duration = Duration::from_mins(3);

/// What kind of cluster is wanted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted<'a> {
    /// Names the folder `target/<name>`.
    pub name: &'a str,
    /// Whether pods can run, or only objects be kept.
    pub has_node: bool,
    /// Whether our custom resource definitions are there from the start. The garbage collector looks for new ones every
    /// 30 s only; what is there before the controller manager, it knows.
    pub has_definitions: bool,
    /// An older version of Kubernetes for the API server to behave as.
    pub emulated_version: Option<&'a str>,
}

/// A running cluster; it ends when dropped.
///
/// The fields are dropped in their order: the keeper, with everything inside, before the claim on the folder.
#[derive(Debug)]
pub struct Cluster {
    keeper: Keeper,
    daemons: Vec<Daemon>,
    binaries: Binaries,
    pki: Pki,
    place: Place,
    dir: PathBuf,
    ending: Ending,
}

impl Cluster {
    /// Starts a cluster; what an earlier run of the same name left is cleared first.
    pub fn start(binaries: &Binaries, wanted: Wanted<'_>, say: Say<'_>) -> Result<Cluster> {
        let dir = workspace::target().join(wanted.name);
        let claim = Claim::take(&dir)?;
        claim.clear()?;
        let ending = Ending { claim: Some(claim) };
        for folder in ["logs", "state", "bin"] {
            std::fs::create_dir_all(dir.join(folder))
                .with_context(|| format!("make {}", dir.display()))?;
        }
        say("namespaces and network");
        let keeper = Keeper::start(&binaries.program("keeper"), &dir)?;
        ending.record(keeper.pid, None)?;
        let place = network::join(&keeper)?;
        ending.record(keeper.pid, Some(place))?;
        let pki = Pki::create(&dir.join("state/pki"), place.address(), &place.node())?;
        let mut cluster = Cluster {
            keeper,
            daemons: Vec::new(),
            binaries: binaries.clone(),
            pki,
            place,
            dir,
            ending,
        };
        cluster.start_programs(wanted, say)?;
        Ok(cluster)
    }

    fn start_programs(&mut self, wanted: Wanted<'_>, say: Say<'_>) -> Result<()> {
        say("etcd, API server, containerd");
        let ground = self.ground();
        let pause = images::pause(&self.binaries, &self.dir)?;
        let (server, containerd) = std::thread::scope(|scope| {
            let containerd = wanted
                .has_node
                .then(|| scope.spawn(|| node::containerd(&ground, &pause)));
            let server = control_plane::api_server(&ground, wanted.emulated_version);
            (server, containerd.map(std::thread::ScopedJoinHandle::join))
        });
        let mut daemons = Vec::from(server?);
        if let Some(containerd) = containerd {
            daemons.push(containerd.map_err(|_| anyhow::anyhow!("starting containerd panicked"))??);
        }
        self.publish_tools()?;

        if wanted.has_definitions {
            install::definitions(&self.kubectl())?;
        }
        say("controllers");
        let ground = self.ground();
        daemons.extend(control_plane::controllers(&ground, wanted.has_node)?);
        if wanted.has_node {
            say("node");
            daemons.extend(node::start(&ground)?);
            self.kubectl()
                .apply(&node::coredns_rights().to_string(), &[])?;
        }
        self.daemons = daemons;
        self.await_ready(wanted)
    }

    /// A kubeconfig and a kubectl where a person looks for them.
    fn publish_tools(&self) -> Result<()> {
        let copied = std::fs::copy(self.pki.path("admin.kubeconfig"), self.kubeconfig());
        copied.context("write the kubeconfig")?;
        std::os::unix::fs::symlink(self.binaries.program("kubectl"), self.bin().join("kubectl"))
            .context("link kubectl")
    }

    fn await_ready(&mut self, wanted: Wanted<'_>) -> Result<()> {
        let kubectl = self.kubectl();
        wait::until("the first ServiceAccount", NODE_WITHIN, || {
            self.check()?;
            kubectl.find(&["serviceaccount", "default", "--namespace=default"])
        })?;
        if wanted.has_node {
            let node = self.place.node();
            wait::until("the node to be Ready", NODE_WITHIN, || {
                self.check()?;
                let node = kubectl.find(&["node", &node])?;
                Ok(node.filter(|node| has_condition(node, "Ready")))
            })?;
        }
        Ok(())
    }

    /// An error if one of its programs has ended.
    pub fn check(&mut self) -> Result<()> {
        interrupt::check()?;
        self.daemons.iter_mut().try_for_each(Daemon::check)
    }

    /// Brings an image archive to the node.
    pub fn import(&self, archive: &Path) -> Result<()> {
        node::import(&self.ground(), archive)
    }

    /// A proxy to the API server for one caller, and the kubeconfig, a file of the cluster's [`Pki`], that leads there.
    fn divert(
        &self,
        caller: &str,
        decide: impl Fn(&Asked) -> Fate + Send + Sync + 'static,
    ) -> Result<(FaultProxy, String)> {
        let road = Road {
            pki: &self.pki,
            api_server: (self.address(), network::API_PORT).into(),
            listen: network::MACHINE,
            caller: Some(caller),
        };
        let proxy = FaultProxy::start(road, decide)?;
        let kubeconfig = self.pki.redirect(caller, proxy.address())?;
        Ok((proxy, kubeconfig))
    }

    /// A proxy that lets `decide` on what becomes of what an administrator asks, and a kubeconfig that leads there.
    pub fn divert_admin(
        &self,
        decide: impl Fn(&Asked) -> Fate + Send + Sync + 'static,
    ) -> Result<(FaultProxy, PathBuf)> {
        let (proxy, kubeconfig) = self.divert("admin", decide)?;
        Ok((proxy, self.pki.path(&kubeconfig)))
    }

    /// Starts the kubelet anew, and lets `decide` on what becomes of all that it asks from now on.
    pub fn divert_kubelet(
        &mut self,
        decide: impl Fn(&Asked) -> Fate + Send + Sync + 'static,
    ) -> Result<FaultProxy> {
        let (proxy, kubeconfig) = self.divert(node::KUBELET, decide)?;
        let mut daemons = self.daemons.iter();
        let kubelet = daemons.position(|daemon| daemon.name() == node::KUBELET);
        let kubelet = kubelet.context("the cluster has no node")?;
        self.daemons.swap_remove(kubelet).end()?;
        let kubelet = node::kubelet(&self.ground(), &kubeconfig)?;
        self.daemons.push(kubelet);
        Ok(proxy)
    }

    pub fn kubectl(&self) -> Kubectl {
        Kubectl::new(&self.binaries.program("kubectl"), &self.kubeconfig())
    }

    /// `target/<name>`.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A folder with `kubectl`, to put on a PATH.
    pub fn bin(&self) -> PathBuf {
        self.dir.join("bin")
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.join("kubeconfig")
    }

    /// Where the API server writes what was asked of it.
    pub fn audit_log(&self) -> PathBuf {
        self.dir.join("logs/audit.log")
    }

    /// The node's address, which is the API server's too.
    pub fn address(&self) -> Ipv4Addr {
        self.place.address()
    }

    /// Ends it, and says if something of it is left. What is merely dropped ends too, but can only complain.
    pub fn end(self) -> Result<()> {
        let Cluster {
            keeper, mut ending, ..
        } = self;
        drop(keeper);
        ending.claim.take().map_or(Ok(()), |claim| claim.tidy())
    }

    /// Lets the cluster run on after our own end; the next run of its name ends it.
    pub fn keep(self) -> Result<()> {
        let mut ending = self.ending;
        ending.claim = None;
        self.keeper.keep()
    }

    fn ground(&self) -> Ground<'_> {
        Ground {
            keeper: &self.keeper,
            binaries: &self.binaries,
            pki: &self.pki,
            place: self.place,
            dir: &self.dir,
        }
    }
}

/// Ends the cluster that an earlier run of this name kept, if there is one; says if something of it is left.
pub fn end_kept(name: &str) -> Result<()> {
    let dir = workspace::target().join(name);
    // Else a slip of the pen would clear a folder of Cargo's.
    if !Claim::is_known(&dir) {
        bail!("no cluster has ever been in {}", dir.display());
    }
    Claim::take(&dir)?.tidy()
}

/// Tidies up once the keeper is gone.
#[derive(Debug)]
struct Ending {
    claim: Option<Claim>,
}

impl Ending {
    fn record(&self, pid: u32, place: Option<Place>) -> Result<()> {
        self.claim
            .as_ref()
            .map_or(Ok(()), |claim| claim.record(pid, place))
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.claim.take().map(|claim| claim.tidy()) {
            #[expect(
                clippy::print_stderr,
                reason = "an error on the way out has nobody else to go to"
            )]
            {
                eprintln!("error: {error:#}");
            }
        }
    }
}
