//! How does an operator run outside its cluster, where it can be killed and started again at will?

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::http;
use crate::install::NAMESPACE;

/// Where its ports are: below those that clusters give to Services and the kernel to whoever dials.
const PORTS: Range<u16> = 20_000..30_000;
const HEALTH_WITHIN: Duration = Duration::from_secs(5);

/// An operator on this machine; it is killed when dropped.
#[derive(Debug)]
pub struct Operator {
    start: Start,
    child: Child,
}

/// How it is started, again and again.
#[derive(Debug)]
struct Start {
    program: PathBuf,
    kubeconfig: PathBuf,
    identity: String,
    log: PathBuf,
    /// The ports of its grant server, and of its health and metrics.
    grants: u16,
    health: u16,
}

impl Operator {
    /// Starts one of those in `programs`, which goes to the API server by way of `kubeconfig`. Node ports are said to be
    /// this machine's own, and tokens may be for it.
    pub fn start(programs: &Path, kubeconfig: &Path, number: u16, logs: &Path) -> Result<Operator> {
        let start = Start {
            program: programs.join("spanwire"),
            kubeconfig: kubeconfig.to_owned(),
            identity: format!("operator-{number}"),
            log: logs.join(format!("operator-{number}.log")),
            grants: port()?,
            health: port()?,
        };
        let child = start.run()?;
        Ok(Operator { start, child })
    }

    /// Kills it, and starts it again.
    pub fn restart(&mut self) -> Result<()> {
        self.kill()?;
        self.child = self.start.run()?;
        Ok(())
    }

    /// An error if it has ended.
    pub fn check(&mut self) -> Result<()> {
        let ended = self.child.try_wait().context("look at the operator")?;
        ended.map_or(Ok(()), |status| bail!("the operator ended: {status}"))
    }

    /// The status that its health has at `path`, `/healthz` or `/readyz`.
    pub fn health(&self, path: &str) -> Result<u16> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.start.health))?;
        stream.set_read_timeout(Some(HEALTH_WITHIN))?;
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
        Ok(http::exchange(&mut stream, &request)?.status)
    }

    /// What it has resident, in kilobytes.
    pub fn memory(&self) -> Result<u64> {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let size = line.and_then(|line| line.trim().strip_suffix(" kB"));
        Ok(size.context("no size")?.parse()?)
    }

    /// Where it serves grants.
    pub fn grants(&self) -> (Ipv4Addr, u16) {
        (Ipv4Addr::LOCALHOST, self.start.grants)
    }

    fn kill(&mut self) -> Result<()> {
        self.child.kill().context("kill the operator")?;
        self.child.wait().map(drop).context("wait for the operator")
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.kill();
    }
}

impl Start {
    fn run(&self) -> Result<Child> {
        let file = File::options().create(true).append(true).open(&self.log);
        let file = file.with_context(|| format!("open {}", self.log.display()))?;
        let mut command = Command::new(&self.program);
        command
            .args([
                "operator",
                "--default-access-type=nodeport",
                "--cluster-host=127.0.0.1",
                "--allow-loopback-tokens",
            ])
            .arg(format!("--namespace={NAMESPACE}"))
            .arg(format!("--identity={}", self.identity))
            .arg(format!("--grant-server-port={}", self.grants))
            .arg(format!("--metrics-address=127.0.0.1:{}", self.health))
            .env("KUBECONFIG", &self.kubeconfig)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file);
        command
            .spawn()
            .with_context(|| format!("start {}", self.program.display()))
    }
}

/// A port that nobody listens on, and that nobody was given before. Test programs that run side by side begin to look
/// in different places.
fn port() -> Result<u16> {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    let count = u32::from(PORTS.end - PORTS.start);
    let first = std::process::id() % (count / 16) * 16;
    let offsets = (0..count).map(|_| (first + GIVEN.fetch_add(1, Ordering::Relaxed)) % count);
    let mut ports = offsets.map(|offset| PORTS.start + u16::try_from(offset).unwrap_or_default());
    let port = ports.find(|port| TcpListener::bind((Ipv4Addr::UNSPECIFIED, *port)).is_ok());
    port.context("no port is free")
}
