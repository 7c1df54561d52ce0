//! How do clusters reach each other, and nothing else? One bridge on the machine, one address a cluster.
//!
//! Nodes are `10.201.0.I`, their pods `10.202.I.0/24`, Services `10.203.0.0/16` inside each. There is no default
//! route inside, and the machine itself calls the ranges unreachable, so nothing leaves it.

use std::fs::File;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use crate::keeper::{self, Keeper};
use crate::{command, wait, workspace};

const BRIDGE: &str = "spanwire0";
const NODES: &str = "10.201.0.0/16";
const PODS: &str = "10.202.0.0/16";
/// The range of Service addresses, the same inside every cluster.
pub const SERVICES: &str = "10.203.0.0/16";
/// The machine's own address on the bridge.
pub const MACHINE: Ipv4Addr = Ipv4Addr::new(10, 201, 0, 1);
/// The address of Service `kubernetes`.
pub const API_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 203, 0, 1);
/// Where an API server listens.
pub const API_PORT: u16 = 6443;
/// Behind every other route to the same range.
const LAST_RESORT: &str = "4096";
const WITHIN: Duration = Duration::from_secs(10);

/// A cluster's place on the bridge.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Place {
    index: u8,
    /// The keeper's process id and start time: the place may be another's after its end.
    holder: (u32, u64),
}

impl Place {
    /// The node's address.
    pub fn address(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 201, 0, self.index)
    }

    /// The node's name.
    pub fn node(self) -> String {
        format!("node-{}", self.index)
    }

    /// The range of its pods' addresses.
    pub fn pods(self) -> String {
        format!("10.202.{}.0/24", self.index)
    }

    /// A fixed hardware address: a random one leaves stale neighbours behind for half a minute.
    fn mac(self) -> String {
        format!("02:00:0a:c9:00:{:02x}", self.index)
    }

    /// What is written on the port, to know it by.
    fn mark(self) -> String {
        let (pid, start_time) = self.holder;
        format!("keeper-{pid}-{start_time}")
    }

    fn port(self) -> String {
        format!("spanwire-{}", self.index)
    }

    /// Whether the port is there, and not another cluster's by now.
    fn is_held(self) -> bool {
        let port = Path::new("/sys/class/net").join(self.port());
        std::fs::read_to_string(port.join("ifalias")).is_ok_and(|alias| alias.trim() == self.mark())
    }
}

/// Joins the keeper's network to the bridge, which is made if need be, at the first place that is free.
pub fn join(keeper: &Keeper) -> Result<Place> {
    let _lock = lock()?;
    let holder = (
        keeper.pid,
        keeper::start_time(keeper.pid).context("the keeper has ended")?,
    );
    let place = (2..=250)
        .map(|index| Place { index, holder })
        .find(|place| !is_there(&place.port()));
    let place = place.context("no free address on the bridge: too many clusters")?;
    make_bridge()?;
    let (port, mac, pid, mark) = (place.port(), place.mac(), keeper.pid, place.mark());
    let outside = format!(
        "link add {port} type veth peer name eth0 address {mac} netns {pid}\n\
         link set {port} alias {mark} master {BRIDGE} up\n"
    );
    batch(Command::new("ip"), &outside)?;

    let address = place.address();
    let inside = format!(
        "link set lo up\n\
         address add {address}/16 dev eth0\n\
         link set eth0 up\n\
         route add {SERVICES} dev eth0 src {address}\n"
    );
    batch(entered(keeper, "ip"), &inside)?;
    let forward = "echo 1 > /proc/sys/net/ipv4/ip_forward";
    command::output(entered(keeper, "sh").args(["-c", forward]), WITHIN)?;
    let masquerade = format!(
        "add table ip spanwire\n\
         add chain ip spanwire postrouting {{ type nat hook postrouting priority srcnat; }}\n\
         add rule ip spanwire postrouting ip saddr {} ip daddr != {PODS} oifname eth0 masquerade\n",
        place.pods()
    );
    let nft = command::answer(
        entered(keeper, "nft").args(["-f", "-"]),
        Some(masquerade.as_bytes()),
        WITHIN,
    )?;
    nft.ok("nft")?;
    Ok(place)
}

/// Gives up a place, and removes the bridge and its routes once no cluster is on it.
pub fn leave(place: Option<Place>) -> Result<()> {
    let _lock = lock()?;
    // The port goes when the cluster's network namespace does, which the kernel ends a little after its last process.
    if let Some(place) = place
        && !wait::quietly(WITHIN, || !place.is_held())
    {
        bail!(
            "the network namespace of an ended cluster is still there: its port is {}",
            place.port()
        );
    }
    let ports = Path::new("/sys/class/net").join(BRIDGE).join("brif");
    if std::fs::read_dir(ports).is_ok_and(|mut ports| ports.next().is_none()) {
        for range in [NODES, PODS] {
            remove(&[
                "route",
                "delete",
                "unreachable",
                range,
                "metric",
                LAST_RESORT,
            ]);
        }
        remove(&["link", "delete", BRIDGE]);
    }
    Ok(())
}

/// Removes something that may be gone already; not to be interrupted.
fn remove(what: &[&str]) {
    let _ = Command::new("ip")
        .args(what)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
}

/// Makes the bridge, or completes what an earlier run made of it.
fn make_bridge() -> Result<()> {
    if !is_there(BRIDGE) {
        batch(
            Command::new("ip"),
            &format!("link add {BRIDGE} address 02:00:0a:c9:00:01 type bridge\n"),
        )?;
    }
    let lines = format!(
        "address replace {MACHINE}/16 dev {BRIDGE}\n\
         link set {BRIDGE} up\n\
         route replace unreachable {NODES} metric {LAST_RESORT}\n\
         route replace unreachable {PODS} metric {LAST_RESORT}\n"
    );
    batch(Command::new("ip"), &lines)
}

fn entered(keeper: &Keeper, program: &str) -> Command {
    let mut command = keeper.enter();
    command.arg(program);
    command
}

fn batch(mut ip: Command, lines: &str) -> Result<()> {
    let answer = command::answer(
        ip.args(["-force", "-batch", "-"]),
        Some(lines.as_bytes()),
        WITHIN,
    )?;
    if !answer.status.success() {
        bail!(
            "ip refused one of these lines: {}\n{lines}",
            answer.stderr.trim()
        );
    }
    Ok(())
}

fn is_there(link: &str) -> bool {
    Path::new("/sys/class/net").join(link).exists()
}

/// One at a time, whichever source tree it runs from.
fn lock() -> Result<File> {
    let path = workspace::cache()?.join("network.lock");
    let file = File::create(&path).with_context(|| format!("open {}", path.display()))?;
    file.lock()
        .with_context(|| format!("lock {}", path.display()))?;
    Ok(file)
}
