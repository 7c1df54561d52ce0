//! Which processes does a pod have, and to whom do they talk? The node's are ours, so `/proc` tells without the API server.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process};

use crate::wait;

const WITHIN: Duration = Duration::from_mins(1);
/// States of a TCP socket, as `/proc/net/tcp` writes them.
const ESTABLISHED: &str = "01";
const LISTEN: &str = "0A";

/// A process of a pod.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Process(Pid);

/// An open connection: our port, the other's port.
pub type Connection = (u16, u16);

/// What a router's process may be called: our stand-in, or a real one.
pub const ROUTER: [&str; 2] = ["spanwire-standin", "skrouterd"];
/// What the process beside it is called.
pub const ADAPTOR: [&str; 1] = ["spanwire-adaptor"];

/// The process of a pod that runs one of `programs`, once there is one.
pub fn of_pod(uid: &str, programs: &[&str]) -> Result<Process> {
    wait::until(&format!("{programs:?} of pod {uid}"), WITHIN, || {
        Ok(find(|pid| runs(pid, programs) && is_of_pod(pid, uid)))
    })
}

/// The ids of all processes that run one of `programs`, on whichever node of ours.
pub fn called(programs: &[&str]) -> BTreeSet<i32> {
    all()
        .filter(|(_, name)| runs(name, programs))
        .map(|(pid, _)| pid.as_raw_nonzero().get())
        .collect()
}

/// A program of the control plane whose command line names a file in `dir`.
pub fn of_cluster(program: &str, dir: &str) -> Result<Process> {
    let found = find(|pid| {
        let line = command_line(pid);
        line.first().is_some_and(|first| first.ends_with(program))
            && line.iter().any(|word| word.contains(dir))
    });
    found.with_context(|| format!("no {program} runs in {dir}"))
}

impl Process {
    /// The process with this id.
    pub fn new(id: i32) -> Result<Process> {
        Pid::from_raw(id).map(Process).context("a process id")
    }

    /// What it would read from a file.
    pub fn read(self, path: &str) -> Result<String> {
        let path = format!("/proc/{}/root{path}", self.0.as_raw_nonzero());
        std::fs::read_to_string(&path).with_context(|| format!("read {path}"))
    }

    pub fn kill(self) -> Result<()> {
        kill_process(self.0, Signal::KILL).context("kill a process")
    }

    /// Stops it where it stands, until what is returned is dropped.
    pub fn pause(self) -> Result<Paused> {
        kill_process(self.0, Signal::STOP).context("pause a process")?;
        Ok(Paused(self))
    }

    /// Whether a socket in its network namespace listens on a port.
    pub fn listens(self, port: u16) -> bool {
        self.sockets()
            .iter()
            .any(|socket| socket.0 == port && socket.2 == LISTEN)
    }

    /// Its network namespace's open connections to another machine.
    pub fn connections(self) -> BTreeSet<Connection> {
        let open = self.sockets().into_iter();
        open.filter(|(_, _, state, is_local)| state == ESTABLISHED && !is_local)
            .map(|(ours, theirs, ..)| (ours, theirs))
            .collect()
    }

    /// Port, the other's port, state, and whether the other is on the same machine.
    fn sockets(self) -> Vec<(u16, u16, String, bool)> {
        let tables = ["tcp", "tcp6"].map(|table| {
            let path = format!("/proc/{}/net/{table}", self.0.as_raw_nonzero());
            std::fs::read_to_string(path).unwrap_or_default()
        });
        let lines = tables.iter().flat_map(|table| table.lines().skip(1));
        lines.filter_map(socket).collect()
    }
}

/// A process that goes on when this is dropped.
#[derive(Debug)]
pub struct Paused(Process);

impl Drop for Paused {
    fn drop(&mut self) {
        let _ = kill_process(self.0.0, Signal::CONT);
    }
}

fn all() -> impl Iterator<Item = (Pid, String)> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter_map(|name| Some((Pid::from_raw(name.parse().ok()?)?, name)))
}

fn find(mut is_it: impl FnMut(&str) -> bool) -> Option<Process> {
    all()
        .find(|(_, name)| is_it(name))
        .map(|(pid, _)| Process(pid))
}

fn command_line(pid: &str) -> Vec<String> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = line
        .split(|byte| *byte == 0)
        .filter(|word| !word.is_empty());
    words
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect()
}

fn runs(pid: &str, programs: &[&str]) -> bool {
    let line = command_line(pid);
    let first = line.first();
    first.is_some_and(|first| programs.iter().any(|name| first.ends_with(name)))
}

/// Every volume of a pod is mounted from a folder that is named by its uid.
fn is_of_pod(pid: &str, uid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/mountinfo"))
        .is_ok_and(|mounts| mounts.contains(&format!("/pods/{uid}/")))
}

/// `0: 0100007F:1F90 00000000:0000 0A …`: number, here, there, state.
fn socket(line: &str) -> Option<(u16, u16, String, bool)> {
    let mut words = line.split_whitespace().skip(1);
    let (_, here) = words.next()?.split_once(':')?;
    let (address, there) = words.next()?.split_once(':')?;
    let port = |text| u16::from_str_radix(text, 16).ok();
    // Of an IPv6 address the last word, which is the IPv4 address where there is one.
    let last = address.get(address.len().checked_sub(8)?..)?;
    let address = Ipv4Addr::from(u32::from_str_radix(last, 16).ok()?.to_le_bytes());
    Some((
        port(here)?,
        port(there)?,
        words.next()?.to_owned(),
        address.is_loopback(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_table_is_a_socket() {
        let line =
            "   0: 0100007F:D979 0200C90A:7BB7 01 00000000:00000000 00:00000000 00000000 10000 0 1";
        assert_eq!(socket(line), Some((0xD979, 0x7BB7, "01".to_owned(), false)));
        let mapped =
            "0: 0000000000000000FFFF00000100007F:D979 00000000000000000000000000000000:0000 0A";
        assert_eq!(socket(mapped).map(|found| found.2), Some("0A".to_owned()));
        assert!(socket("  sl  local_address rem_address   st").is_none());
    }

    #[test]
    fn a_listener_of_ours_is_seen() {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let me = Process(Pid::from_raw(std::process::id().cast_signed()).unwrap());
        assert!(me.listens(listener.local_addr().unwrap().port()));
    }
}
