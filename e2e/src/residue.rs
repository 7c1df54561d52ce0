//! What did an earlier run leave behind? Claims a cluster's folder, clears it, and keeps others out.
//!
//! A run that was killed outright leaves files, empty control groups and perhaps the bridge; the kernel has ended the
//! rest ([`crate::keeper`]). A run that was told to keep its cluster leaves it running, recorded here.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use crate::network::Place;
use crate::{keeper, network, wait};

/// Where containerd keeps a folder for each container that exists.
const CONTAINERS: &str = "state/run/containerd/io.containerd.runtime.v2.task/k8s.io";
const RECORD: &str = "state/keeper.json";
/// What is of use after the end; all else goes.
const KEPT: [&str; 2] = ["logs", "lock"];

/// The right to use `target/<name>`, until dropped.
#[derive(Debug)]
pub struct Claim {
    dir: PathBuf,
    _lock: File,
}

/// The process that keeps a cluster, by a name that no other process will ever have.
#[derive(Deserialize, Serialize)]
struct Record {
    pid: u32,
    start_time: u64,
    boot: String,
    place: Option<Place>,
}

impl Claim {
    /// Takes the folder and ends a cluster that was kept in it, or says that another run uses it.
    pub fn take(dir: &Path) -> Result<Claim> {
        std::fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
        let path = dir.join("lock");
        let lock = File::create(&path).with_context(|| format!("open {}", path.display()))?;
        if lock.try_lock().is_err() {
            bail!("another run uses {}: end it first", dir.display());
        }
        let claim = Claim {
            dir: dir.to_owned(),
            _lock: lock,
        };
        claim.end_keeper();
        Ok(claim)
    }

    /// Writes down who keeps the cluster, and its place on the bridge once it has one.
    pub fn record(&self, pid: u32, place: Option<Place>) -> Result<()> {
        let start_time = keeper::start_time(pid).context("the keeper has ended")?;
        let record = Record {
            pid,
            start_time,
            boot: boot(),
            place,
        };
        let path = self.dir.join(RECORD);
        std::fs::create_dir_all(self.dir.join("state"))?;
        std::fs::write(&path, serde_json::to_vec(&record)?)
            .with_context(|| format!("write {}", path.display()))
    }

    /// Removes all that an earlier run left.
    pub fn clear(&self) -> Result<()> {
        self.clear_but(&["lock"])
    }

    /// Removes what a cluster that has ended leaves: control groups, the bridge, all files but its logs.
    pub fn tidy(&self) -> Result<()> {
        self.clear_but(&KEPT)
    }

    fn clear_but(&self, kept: &[&str]) -> Result<()> {
        remove_control_groups(&self.dir.join(CONTAINERS));
        network::leave(self.recorded().and_then(|record| record.place))?;
        for entry in
            std::fs::read_dir(&self.dir).with_context(|| format!("read {}", self.dir.display()))?
        {
            let entry = entry?;
            if kept.iter().any(|name| entry.file_name() == *name) {
                continue;
            }
            let path = entry.path();
            let removed = if entry.file_type()?.is_dir() {
                std::fs::remove_dir_all(&path)
            } else {
                std::fs::remove_file(&path)
            };
            removed.with_context(|| format!("remove {}", path.display()))?;
        }
        Ok(())
    }

    /// Ends the keeper of a kept cluster, and with it everything inside.
    fn end_keeper(&self) {
        let Some(record) = self.recorded() else {
            return;
        };
        let is_alive =
            || record.boot == boot() && keeper::start_time(record.pid) == Some(record.start_time);
        let pid = i32::try_from(record.pid)
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        if let (true, Some(pid)) = (is_alive(), pid) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            wait::quietly(Duration::from_secs(10), || !is_alive());
        }
    }

    fn recorded(&self) -> Option<Record> {
        serde_json::from_slice(&std::fs::read(self.dir.join(RECORD)).ok()?).ok()
    }
}

/// Process ids and start times begin anew with each boot.
fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// The control groups of containers that were killed with their shims; version 1 has one tree a controller.
fn remove_control_groups(containers: &Path) {
    let Ok(containers) = std::fs::read_dir(containers) else {
        return;
    };
    let hierarchy = Path::new("/sys/fs/cgroup");
    let mut trees = vec![hierarchy.to_owned()];
    trees.extend(
        std::fs::read_dir(hierarchy)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path()),
    );
    let ids: Vec<_> = containers
        .flatten()
        .map(|container| container.file_name())
        .collect();
    for tree in trees {
        let parent = tree.join("k8s.io");
        for group in ids
            .iter()
            .map(|id| parent.join(id))
            .filter(|group| group.is_dir())
        {
            wait::quietly(Duration::from_secs(1), || remove_group(&group).is_ok());
        }
        // Refused while anybody's container is left in it.
        let _ = std::fs::remove_dir(parent);
    }
}

fn remove_group(group: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(group)?.flatten() {
        if entry.file_type()?.is_dir() {
            remove_group(&entry.path())?;
        }
    }
    std::fs::remove_dir(group)
}
