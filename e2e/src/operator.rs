//! How does an operator run outside its cluster, where it can be killed and started again at will?

use std::fs::File;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};

use crate::install::NAMESPACE;

/// Ports of the first one; each further one has the next.
const GRANTS: u16 = 19_090;
const HEALTH: u16 = 19_000;

/// An operator on this machine; it is killed when dropped.
#[derive(Debug)]
pub struct Operator {
    program: PathBuf,
    kubeconfig: PathBuf,
    number: u16,
    log: PathBuf,
    child: Child,
}

impl Operator {
    /// Starts one of those in `programs`, which goes to the API server by way of `kubeconfig`. Node ports are said to be
    /// this machine's own, and tokens may be for it.
    pub fn start(programs: &Path, kubeconfig: &Path, number: u16, logs: &Path) -> Result<Operator> {
        let program = programs.join("spanwire");
        let log = logs.join(format!("operator-{number}.log"));
        let child = run(&program, kubeconfig, number, &log)?;
        Ok(Operator {
            program,
            kubeconfig: kubeconfig.to_owned(),
            number,
            log,
            child,
        })
    }

    /// Kills it, and starts it again.
    pub fn restart(&mut self) -> Result<()> {
        self.kill()?;
        self.child = run(&self.program, &self.kubeconfig, self.number, &self.log)?;
        Ok(())
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
        (Ipv4Addr::LOCALHOST, GRANTS + self.number)
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

fn run(program: &Path, kubeconfig: &Path, number: u16, log: &Path) -> Result<Child> {
    let file = File::options().create(true).append(true).open(log);
    let file = file.with_context(|| format!("open {}", log.display()))?;
    let mut command = Command::new(program);
    command
        .args([
            "operator",
            "--default-access-type=nodeport",
            "--cluster-host=127.0.0.1",
            "--allow-loopback-tokens",
        ])
        .arg(format!("--namespace={NAMESPACE}"))
        .arg(format!("--identity=operator-{number}"))
        .arg(format!("--grant-server-port={}", GRANTS + number))
        .arg(format!("--metrics-address=127.0.0.1:{}", HEALTH + number))
        .env("KUBECONFIG", kubeconfig)
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file);
    command
        .spawn()
        .with_context(|| format!("start {}", program.display()))
}
