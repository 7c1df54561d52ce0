//! What of a cluster is still there? Every process inside has a mount from the cluster's folder, the containers too:
//! that is how it is known, whatever became of its parents and of our records.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process};

const CONTROL_GROUPS: &str = "/sys/fs/cgroup";

/// How a mount from one folder shows in any table of mounts, proc_pid_mountinfo(5).
#[derive(Debug)]
pub struct Remains {
    /// `major:minor` of the file system.
    device: String,
    /// The folder's path on it, with a slash at its end.
    folder: String,
}

impl Remains {
    /// Of the cluster in `dir`.
    pub fn of(dir: &Path) -> Result<Remains> {
        let dir = dir
            .canonicalize()
            .with_context(|| format!("find {}", dir.display()))?;
        let dir = escaped(&dir);
        let table = table("self").context("read our own table of mounts")?;
        let mounts = table
            .lines()
            .filter_map(mount)
            .filter_map(|mount| Some((within(&dir, mount.point)?, mount)));
        // The longest mount point is the nearest; of those at the same one, the last hides the others.
        let (rest, mount) = mounts
            .max_by_key(|(_, mount)| mount.point.len())
            .with_context(|| format!("find the file system of {dir}"))?;
        Ok(Remains {
            device: mount.device.to_owned(),
            folder: format!("{}{rest}/", mount.root.trim_end_matches('/')),
        })
    }

    /// The processes in other mount namespaces than ours that have a mount from the folder.
    fn processes(&self) -> Vec<u32> {
        let ours = namespace("self");
        let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let names = all.filter_map(|entry| entry.file_name().into_string().ok());
        names
            .filter_map(|name| Some((name.parse().ok()?, name)))
            .filter(|(_, name)| namespace(name) != ours)
            .filter(|(_, name)| table(name).is_some_and(|table| self.mounts_in(&table).count() > 0))
            .map(|(pid, _)| pid)
            .collect()
    }

    /// The processes that are left, none of them any more in a state in which what is killed does not die.
    pub fn release(&self) -> Vec<u32> {
        let processes = self.processes();
        for pid in &processes {
            thaw(*pid);
            wake(*pid);
        }
        processes
    }

    /// Where something from the folder is mounted outside of any cluster.
    pub fn mounts(&self) -> Vec<String> {
        let table = table("self").unwrap_or_default();
        let points = self.mounts_in(&table).map(|mount| mount.point.to_owned());
        points.collect()
    }

    fn mounts_in<'a>(&self, table: &'a str) -> impl Iterator<Item = Mount<'a>> {
        table.lines().filter_map(mount).filter(|mount| {
            mount.device == self.device && mount.root.starts_with(self.folder.as_str())
        })
    }
}

/// The process's id and name, for a person.
pub fn described(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    format!("{pid} ({})", name.trim())
}

/// A frozen process does not die. runc freezes a container's control group, version 1, for a moment now and then.
fn thaw(pid: u32) {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        if let (Some(controllers), Some(group)) = (parts.next(), parts.next())
            && group != "/"
            && controllers
                .split(',')
                .any(|controller| controller == "freezer")
        {
            let state = format!("{CONTROL_GROUPS}/{controllers}{group}/freezer.state");
            let _ = std::fs::write(state, "THAWED");
        }
    }
}

/// A stopped `nsenter` does not take notice of its child's end, and until then the child's namespaces do not end. It stops
/// when its child is stopped, but does not go on when that does.
fn wake(pid: u32) {
    if let Some(pid) = pid.try_into().ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::CONT);
    }
}

struct Mount<'a> {
    device: &'a str,
    /// The mounted folder's path on its file system.
    root: &'a str,
    /// Where it is mounted.
    point: &'a str,
}

/// `36 35 98:0 /folder /mnt rw,noatime …`: id, parent, device, root, mount point.
fn mount(line: &str) -> Option<Mount<'_>> {
    let mut words = line.split(' ').skip(2);
    Some(Mount {
        device: words.next()?,
        root: words.next()?,
        point: words.next()?,
    })
}

/// What is behind `point` in `path`, if the one lies in the other.
fn within<'a>(path: &'a str, point: &str) -> Option<&'a str> {
    let rest = path.strip_prefix(point.trim_end_matches('/'))?;
    (rest.is_empty() || rest.starts_with('/')).then_some(rest)
}

fn table(process: &str) -> Option<String> {
    std::fs::read_to_string(format!("/proc/{process}/mountinfo")).ok()
}

fn namespace(process: &str) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{process}/ns/mnt")).ok()
}

/// A path as the kernel writes it into its tables.
fn escaped(path: &Path) -> String {
    let mut text = path.to_string_lossy().replace('\\', "\\134");
    for (character, code) in [(' ', "\\040"), ('\t', "\\011"), ('\n', "\\012")] {
        text = text.replace(character, code);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_from_the_folder_is_told_from_its_neighbours() {
        let remains = Remains {
            device: "254:0".to_owned(),
            folder: "/src/target/up/".to_owned(),
        };
        let table = "30 1 254:0 / / rw - ext4 /dev/vda rw\n\
                     31 30 254:0 /src/target/up2/state/run /run rw - ext4 /dev/vda rw\n\
                     32 30 254:1 /src/target/up/state/run /run rw - ext4 /dev/vdb rw\n\
                     33 30 254:0 /src/target/up/state/lib//deleted /var/lib rw - ext4 /dev/vda rw\n";
        let points: Vec<&str> = remains.mounts_in(table).map(|mount| mount.point).collect();
        assert_eq!(points, ["/var/lib"]);
    }

    #[test]
    fn a_folder_lies_behind_its_mount_point() {
        assert_eq!(within("/src/target", "/"), Some("/src/target"));
        assert_eq!(within("/src/target", "/src"), Some("/target"));
        assert_eq!(within("/src2/target", "/src"), None);
    }
}
