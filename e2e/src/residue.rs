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
use crate::remains::{self, Remains};
use crate::{keeper, network, wait};

/// Where containerd keeps a folder for each container that exists.
const CONTAINERS: &str = "state/run/containerd/io.containerd.runtime.v2.task/k8s.io";
const RECORD: &str = "state/keeper.json";
/// How long what was killed may take to end: a second or two, or longer on a machine that is busy.
const GONE_WITHIN: Duration = Duration::from_mins(1);
/// What is of use after the end; all else goes.
const KEPT: [&str; 2] = ["logs", LOCK];
const LOCK: &str = "lock";

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
        let path = dir.join(LOCK);
        let lock = File::create(&path).with_context(|| format!("open {}", path.display()))?;
        if lock.try_lock().is_err() {
            bail!("another run uses {}: end it first", dir.display());
        }
        let claim = Claim {
            dir: dir.to_owned(),
            _lock: lock,
        };
        claim.end()?;
        Ok(claim)
    }

    /// Whether a folder has ever been taken.
    pub fn is_known(dir: &Path) -> bool {
        dir.join(LOCK).is_file()
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
        self.clear_but(&[LOCK])
    }

    /// Removes what a cluster that has ended leaves: control groups, the bridge, all files but its logs.
    pub fn tidy(&self) -> Result<()> {
        self.clear_but(&KEPT)
    }

    fn clear_but(&self, kept: &[&str]) -> Result<()> {
        // As long as something lives, the record of it stays.
        self.end()?;
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

    /// Ends the keeper, and with it everything inside; says what has not ended.
    fn end(&self) -> Result<()> {
        let keeper = self.recorded().filter(Record::is_alive);
        if let Some(pid) = keeper.as_ref().and_then(Record::pid) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        let remains = Remains::of(&self.dir)?;
        let mut left = Vec::new();
        let is_gone = wait::quietly(GONE_WITHIN, || {
            left = remains.release();
            let keeper = keeper.as_ref().filter(|keeper| keeper.is_alive());
            left.extend(keeper.map(|keeper| keeper.pid));
            left.is_empty()
        });
        let here = self.dir.display();
        if !is_gone {
            let left: Vec<String> = left.into_iter().map(remains::described).collect();
            bail!(
                "processes of {here} were killed and have not ended: {}",
                left.join(", ")
            );
        }
        let mounts = remains.mounts();
        if !mounts.is_empty() {
            bail!("{here} is still mounted at {}", mounts.join(", "));
        }
        Ok(())
    }

    fn recorded(&self) -> Option<Record> {
        serde_json::from_slice(&std::fs::read(self.dir.join(RECORD)).ok()?).ok()
    }
}

impl Record {
    fn is_alive(&self) -> bool {
        self.boot == boot() && keeper::start_time(self.pid) == Some(self.start_time)
    }

    fn pid(&self) -> Option<rustix::process::Pid> {
        rustix::process::Pid::from_raw(self.pid.try_into().ok()?)
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;
    use crate::keeper::Keeper;
    use crate::{skip, workspace};

    const WITHIN: Duration = Duration::from_secs(10);
    /// What the keeper does, without having to build it.
    const KEEPER: &str = "#!/bin/sh
for pair; do mkdir -p ${pair%%:*} && mount --bind ${pair%%:*} ${pair##*:} || exit 1; done
echo ready
read -r word
test \"$word\" = keep && exec sleep 1000
";

    #[test]
    fn a_kept_cluster_ends_with_what_is_frozen_or_stopped_in_it() -> Result<()> {
        let group = Path::new("/sys/fs/cgroup/freezer")
            .join(format!("spanwire-test-{}", std::process::id()));
        if std::fs::create_dir(&group).is_err() {
            skip::skip(
                "a_kept_cluster_ends_with_what_is_frozen_or_stopped_in_it",
                "no freezer of control groups, version 1, that could be written",
            );
            return Ok(());
        }
        let ended = keep_and_end(&group);
        std::fs::write(group.join("freezer.state"), "THAWED")?;
        std::fs::remove_dir(&group)?;
        ended
    }

    fn keep_and_end(group: &Path) -> Result<()> {
        std::fs::create_dir_all(workspace::target().join("tmp"))?;
        let dir = tempfile::tempdir_in(workspace::target().join("tmp"))?;
        let claim = Claim::take(dir.path())?;
        std::fs::create_dir_all(dir.path().join("logs"))?;
        let program = dir.path().join("keeper");
        std::fs::write(&program, KEEPER)?;
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))?;

        let keeper = Keeper::start(&program, dir.path())?;
        let pid = keeper.pid;
        claim.record(pid, None)?;
        let mut frozen = keeper.enter().args(["sleep", "1000"]).spawn()?;
        let mut stopped = keeper.enter().args(["sleep", "1000"]).spawn()?;
        let [frozen_inside, stopped_inside] = [child_of(frozen.id())?, child_of(stopped.id())?];
        std::fs::write(group.join("cgroup.procs"), frozen_inside.to_string())?;
        std::fs::write(group.join("freezer.state"), "FROZEN")?;
        let target = Pid::from_raw(stopped_inside.try_into()?).context("a process")?;
        kill_process(target, Signal::STOP)?;
        wait::until("nsenter to stop too", WITHIN, || {
            let status = std::fs::read_to_string(format!("/proc/{}/status", stopped.id()))?;
            Ok(status.contains("T (stopped)").then_some(()))
        })?;
        kill_process(target, Signal::CONT)?;
        keeper.keep()?;
        drop(claim);

        // Their parents are ours, and have to be heard of while the cluster ends.
        let reaper = std::thread::spawn(move || (frozen.wait(), stopped.wait()));
        Claim::take(dir.path())?.tidy()?;
        assert!(reaper.join().is_ok());
        let left = [pid, frozen_inside, stopped_inside].map(keeper::start_time);
        assert_eq!(left, [None; 3]);
        assert!(!dir.path().join(RECORD).exists());
        Ok(())
    }

    fn child_of(parent: u32) -> Result<u32> {
        wait::until("a process inside", WITHIN, || {
            Ok(keeper::only_child(parent))
        })
    }
}
