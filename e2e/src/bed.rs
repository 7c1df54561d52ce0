//! Which cluster do tests run on? One with the operator in it, shared by all test programs of a run.
//!
//! `cargo xtask test` starts it and says where it is in `SPANWIRE_BED`; a test program that is run alone starts one
//! for itself, which ends with it.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::audit::AuditLog;
use crate::binaries::{self, Binaries};
use crate::cluster::{Cluster, Wanted};
use crate::images::Profile;
use crate::install::{self, Settings};
use crate::kubectl::Kubectl;
use crate::tools::{self, Install};
use crate::{Say, images};

/// Names a file with a [`Bed`] in JSON.
pub const VARIABLE: &str = "SPANWIRE_BED";

/// Where a cluster is, for programs that did not start it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Bed {
    /// The node's address, which is the API server's too.
    pub address: Ipv4Addr,
    pub kubeconfig: PathBuf,
    /// A folder with `kubectl`.
    pub bin: PathBuf,
    audit_log: PathBuf,
    /// A folder that lives as long as the cluster.
    dir: PathBuf,
}

impl Bed {
    pub fn of(cluster: &Cluster) -> Bed {
        Bed {
            address: cluster.address(),
            kubeconfig: cluster.kubeconfig(),
            bin: cluster.bin(),
            audit_log: cluster.audit_log(),
            dir: cluster.dir().to_owned(),
        }
    }

    /// The bed of this run.
    ///
    /// A cluster that is started here is held for the life of the process; the kernel ends it with that.
    pub fn shared() -> Result<&'static Bed> {
        static SHARED: OnceLock<Result<(Bed, Option<Cluster>), String>> = OnceLock::new();
        let shared = SHARED.get_or_init(|| match std::env::var_os(VARIABLE) {
            Some(file) => read(Path::new(&file))
                .map(|bed| (bed, None))
                .map_err(|error| format!("{error:#}")),
            None => own()
                .map(|cluster| (Bed::of(&cluster), Some(cluster)))
                .map_err(|error| format!("{error:#}")),
        });
        shared
            .as_ref()
            .map(|(bed, _)| bed)
            .map_err(|error| anyhow::anyhow!("{error}"))
    }

    /// Writes this down for [`VARIABLE`] to name.
    pub fn write(&self, path: &Path) -> Result<()> {
        std::fs::write(path, serde_json::to_vec_pretty(self)?)
            .with_context(|| format!("write {}", path.display()))
    }

    pub fn kubectl(&self) -> Kubectl {
        Kubectl::new(&self.bin.join("kubectl"), &self.kubeconfig)
    }

    pub fn audit(&self) -> AuditLog {
        AuditLog::new(&self.audit_log)
    }

    /// The folder for what is known of failed tests; it outlives the cluster.
    pub fn failures(&self) -> Result<PathBuf> {
        let path = self.dir.join("logs/failures");
        std::fs::create_dir_all(&path).with_context(|| format!("make {}", path.display()))?;
        Ok(path)
    }

    /// A new folder for a test's files.
    pub fn scratch(&self, name: &str) -> Result<PathBuf> {
        let path = self.dir.join("scratch").join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).with_context(|| format!("make {}", path.display()))?;
        Ok(path)
    }
}

/// Imports the image of tools that tests run in pods.
pub fn equip(cluster: &Cluster) -> Result<()> {
    cluster.import(&images::toolbox(cluster.dir())?.path)
}

/// Imports our images and installs the operator, with what a cluster on a bridge needs.
pub fn furnish(cluster: &Cluster, archives: &[images::Archive]) -> Result<()> {
    for archive in archives {
        cluster.import(&archive.path)?;
    }
    let settings = Settings {
        image: Some("spanwire:dev"),
        router_image: Some("spanwire-router:dev"),
        args: vec![
            "--default-access-type=nodeport".to_owned(),
            format!("--cluster-host={}", cluster.address()),
        ],
        replicas: None,
    };
    install::operator(
        &cluster.kubectl(),
        &settings,
        &cluster.dir().join("state/manifests"),
    )
}

/// A cluster of this test program's own, with the operator in it.
pub fn own() -> Result<Cluster> {
    let wanted = Wanted {
        has_node: true,
        has_definitions: true,
        ..Wanted::default()
    };
    let (cluster, programs) = start(wanted, Profile::Bed)?;
    let archives = [
        images::spanwire(&programs, cluster.dir())?,
        images::router(&programs, cluster.dir())?,
    ];
    equip(&cluster)?;
    furnish(&cluster, &archives)?;
    Ok(cluster)
}

/// A control plane of this test program's own, with all that an operator needs which runs outside of it; and the folder
/// of our programs.
pub fn without_operator(profile: Profile) -> Result<(Cluster, PathBuf)> {
    let wanted = Wanted {
        has_definitions: true,
        ..Wanted::default()
    };
    let (cluster, programs) = start(wanted, profile)?;
    let settings = Settings {
        replicas: Some(0),
        ..Settings::default()
    };
    let manifests = cluster.dir().join("state/manifests");
    install::operator(&cluster.kubectl(), &settings, &manifests)?;
    Ok((cluster, programs))
}

/// A control plane of this test program's own that has never heard of us; and the folder of our programs.
pub fn bare(profile: Profile) -> Result<(Cluster, PathBuf)> {
    start(Wanted::default(), profile)
}

fn start(wanted: Wanted<'_>, profile: Profile) -> Result<(Cluster, PathBuf)> {
    let say: Say<'_> = &|_| ();
    tools::prepare(Install::Refused, say)?;
    let binaries: Binaries = binaries::control_plane(say)?;
    let programs = images::build(profile, say)?;
    let name = own_name();
    let wanted = Wanted {
        name: &name,
        ..wanted
    };
    Ok((Cluster::start(&binaries, wanted, say)?, programs))
}

/// A folder for each test program: `target/debug/deps/walk-0123456789abcdef` is `test-walk`.
fn own_name() -> String {
    let program = std::env::current_exe().unwrap_or_default();
    let stem = program
        .file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    format!(
        "test-{}",
        stem.rsplit_once('-')
            .map_or(stem.as_str(), |(name, _)| name)
    )
}

fn read(path: &Path) -> Result<Bed> {
    let text = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("parse {}", path.display()))
}
