//! Where does a cluster run? In network, mount and process namespaces that one small program keeps.
//!
//! The keeper is the first process of its process namespace, so the kernel ends everything inside with it: daemons,
//! containers, mounts, the network. It ends when its standard input does, and that happens however we die. Inside,
//! `/run`, `/var/lib` and `/var/log` are folders of the cluster's own, so that the usual paths of containerd and the
//! kubelet are short, private, and below `target/`.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::remains::Remains;
use crate::wait;

/// The folders of the machine that a cluster has for itself.
const PRIVATE: [(&str, &str); 3] = [
    ("state/run", "/run"),
    ("state/lib", "/var/lib"),
    ("logs/node", "/var/log"),
];

/// Namespaces of the kernel, alive until this is dropped.
#[derive(Debug)]
pub struct Keeper {
    unshare: Child,
    input: Option<ChildStdin>,
    remains: Remains,
    /// The keeper's own process id, as seen from outside.
    pub pid: u32,
}

impl Keeper {
    /// Starts `program` in new namespaces, with the folders of the cluster in `dir`.
    pub fn start(program: &Path, dir: &Path) -> Result<Keeper> {
        // Not our own standard error: a cluster that is kept would hold it open, and whoever reads it would wait.
        let log = dir.join("logs/keeper.log");
        let log = File::create(&log).with_context(|| format!("open {}", log.display()))?;
        for path in [program, dir] {
            if let Some((_, hidden)) = PRIVATE.iter().find(|(_, target)| path.starts_with(target)) {
                bail!(
                    "{} lies in {hidden}, which a test cluster replaces by a folder of its own: move the source tree, or set CARGO_TARGET_DIR and XDG_CACHE_HOME",
                    path.display()
                );
            }
        }
        let remains = Remains::of(dir)?;
        let mut unshare = Command::new("unshare")
            .args([
                "--mount",
                "--net",
                "--pid",
                "--fork",
                "--kill-child",
                "--mount-proc",
            ])
            .args(["--propagation", "private", "--"])
            .arg(program)
            .args(PRIVATE.map(|(source, target)| bind(dir, source, target)))
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .context("start unshare")?;
        let input = unshare.stdin.take();
        let mut greeting = String::new();
        if let Some(output) = unshare.stdout.take() {
            BufReader::new(output)
                .read_line(&mut greeting)
                .context("hear from the keeper")?;
        }
        let pid = only_child(unshare.id());
        let mut keeper = Keeper {
            unshare,
            input,
            remains,
            pid: pid.unwrap_or_default(),
        };
        if greeting.trim() != "ready" || keeper.pid == 0 {
            keeper.end();
            bail!(
                "cannot make namespaces for a cluster (unshare --mount --net --pid): is this root with CAP_SYS_ADMIN?"
            );
        }
        Ok(keeper)
    }

    /// A command that will run inside, once a program is added to it.
    pub fn enter(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.args([
            "--target",
            &self.pid.to_string(),
            "--mount",
            "--net",
            "--pid",
            "--",
        ]);
        command
    }

    /// Lets everything inside live on after our own end.
    pub fn keep(mut self) -> Result<()> {
        if let Some(mut input) = self.input.take() {
            input
                .write_all(b"keep\n")
                .context("tell the keeper to stay")?;
        }
        Ok(())
    }

    /// Ends everything inside. That it has ended, [`crate::residue`] makes sure.
    fn end(&mut self) {
        drop(self.input.take());
        let gone = wait::quietly(Duration::from_secs(10), || {
            self.remains.release();
            !matches!(self.unshare.try_wait(), Ok(None))
        });
        if !gone {
            let _ = self.unshare.kill();
            let _ = self.unshare.wait();
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if self.input.is_some() {
            self.end();
        }
    }
}

fn bind(dir: &Path, source: &str, target: &str) -> std::ffi::OsString {
    let mut bind = dir.join(source).into_os_string();
    bind.push(":");
    bind.push(target);
    bind
}

/// The process that `parent` started, if it has started exactly one that lives.
pub fn only_child(parent: u32) -> Option<u32> {
    let children = std::fs::read_dir("/proc").ok()?.filter_map(|entry| {
        let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        (stat(pid)?.parent == parent).then_some(pid)
    });
    let children: Vec<u32> = children.collect();
    match children[..] {
        [child] => Some(child),
        _ => None,
    }
}

/// When a process started, in clock ticks since the machine did: with its id, a name that is never used twice. Nothing if it
/// has ended; it has not while one of its threads runs, though the first be a zombie already.
pub fn start_time(pid: u32) -> Option<u64> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let is_running = threads
        .flatten()
        .filter_map(|thread| stat_in(&thread.path()))
        .any(|stat| !matches!(stat.state, 'Z' | 'X'));
    stat(pid).filter(|_| is_running).map(|stat| stat.start)
}

fn stat(pid: u32) -> Option<Stat> {
    stat_in(Path::new(&format!("/proc/{pid}")))
}

struct Stat {
    state: char,
    parent: u32,
    start: u64,
}

/// Fields 3, 4 and 22 of proc_pid_stat(5); the second, a name in parentheses, may hold anything.
fn stat_in(folder: &Path) -> Option<Stat> {
    let text = std::fs::read_to_string(folder.join("stat")).ok()?;
    let fields: Vec<&str> = text.rsplit_once(") ")?.1.split(' ').collect();
    Some(Stat {
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        start: fields.get(19)?.parse().ok()?,
    })
}
