//! What must the machine have before a cluster can start, and how does it get that?

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::{Say, command};

/// Programs that the bed and its scenarios call, each with the Debian package that brings it.
const PROGRAMS: [(&str, &str); 15] = [
    ("containerd", "containerd"),
    ("ctr", "containerd"),
    ("containerd-shim-runc-v2", "containerd"),
    ("runc", "runc"),
    ("/usr/lib/cni/ptp", "containernetworking-plugins"),
    ("nft", "nftables"),
    ("conntrack", "conntrack"),
    ("ip", "iproute2"),
    ("nsenter", "util-linux"),
    ("unshare", "util-linux"),
    ("busybox", "busybox-static"),
    ("curl", "curl"),
    ("mount", "mount"),
    ("openssl", "openssl"),
    ("yq", "yq"),
];
const GO: (u32, u32) = (1, 21);
const SHORT: Duration = Duration::from_mins(1);
const INSTALL_WITHIN: Duration = Duration::from_mins(15);

/// Whether missing packages may be installed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Install {
    Allowed,
    Refused,
}

/// Makes sure that a cluster can start here; installs Debian packages that are missing, if it may.
pub fn prepare(install: Install, say: Say<'_>) -> Result<()> {
    let missing = missing();
    if !missing.is_empty() {
        let packages = missing.join(" ");
        if install == Install::Refused || !is_root() {
            bail!(
                "these packages are missing: {packages}\n  as root: apt-get install --no-install-recommends {packages}"
            );
        }
        say(&format!("installing {packages}"));
        apt_get(&["update"])?;
        let install = ["install", "--yes", "--no-install-recommends"];
        apt_get(&[&install, &missing[..]].concat())?;
        if !self::missing().is_empty() {
            bail!(
                "{packages} installed, yet not all of their programs are found: is /usr/sbin on the PATH?"
            );
        }
    }
    if !is_root() {
        bail!("a cluster with a node makes namespaces and mounts: run this as root");
    }
    Ok(())
}

/// Whether we may make namespaces and mounts.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether Go is here and new enough to fetch the version that the module asks for.
pub fn check_go() -> Result<()> {
    let need = format!(
        "Go {}.{} or newer is needed to build the control plane",
        GO.0, GO.1
    );
    let version = command::output(Command::new("go").args(["env", "GOVERSION"]), SHORT)
        .context(need.clone())?;
    let is_new_enough = go_version(&version).is_none_or(|found| found >= GO);
    if !is_new_enough {
        bail!("{need}; this is {}", version.trim());
    }
    Ok(())
}

/// `go1.26.8` is (1, 26); a development version has no numbers and is taken as new.
fn go_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text
        .trim()
        .strip_prefix("go")?
        .split(['.', 'r', 'b', '-', ' ']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn apt_get(args: &[&str]) -> Result<()> {
    let mut command = Command::new("apt-get");
    command
        .env("DEBIAN_FRONTEND", "noninteractive")
        .arg("--quiet")
        .args(args);
    command::output(&mut command, INSTALL_WITHIN).map(drop)
}

/// The packages of all programs that are not here.
fn missing() -> Vec<&'static str> {
    let absent = PROGRAMS.iter().filter(|(program, _)| !is_present(program));
    let mut packages: Vec<&str> = absent.map(|(_, package)| *package).collect();
    packages.dedup();
    packages
}

fn is_present(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // An absolute program replaces the folder.
    std::env::split_paths(&path).any(|folder| folder.join(Path::new(program)).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_go_are_understood() {
        assert_eq!(go_version("go1.26.8\n"), Some((1, 26)));
        assert_eq!(go_version("go1.21rc2"), Some((1, 21)));
        assert_eq!(go_version("devel +abc"), None);
    }
}
