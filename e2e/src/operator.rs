//! How does an operator run outside its cluster, where it can be killed and started again at will?

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use crate::install::{DEPLOYMENT, NAMESPACE};
use crate::kubectl::Kubectl;
use crate::{http, namespace};

/// Where its ports are: below those that clusters give to Services and the kernel to whoever dials.
const PORTS: Range<u16> = 20_000..30_000;
const HEALTH_WITHIN: Duration = Duration::from_secs(5);

/// An operator on this machine; it is killed when dropped.
#[derive(Debug)]
pub struct Operator {
    start: Start,
    /// The port of its health; none of upstream's.
    health: Option<u16>,
    child: Child,
}

/// How it is started, again and again.
#[derive(Debug)]
struct Start {
    program: PathBuf,
    args: Vec<String>,
    kubeconfig: PathBuf,
    log: PathBuf,
    /// The port of its grant server.
    grants: u16,
}

impl Operator {
    /// Starts one of those in `programs`, which goes to the API server by way of `kubeconfig`. Node ports are said to be
    /// this machine's own, and tokens may be for it.
    pub fn start(programs: &Path, kubeconfig: &Path, number: u16, logs: &Path) -> Result<Operator> {
        let name = format!("operator-{number}");
        Operator::ours(
            programs,
            kubeconfig,
            &name,
            logs,
            &[in_namespace(NAMESPACE)],
        )
    }

    /// Starts one that looks at one namespace only, which is its own, and whose objects are made there; `more` are further
    /// flags.
    pub fn start_in(
        namespace: &str,
        programs: &Path,
        kubectl: &Kubectl,
        logs: &Path,
        more: &[String],
    ) -> Result<Operator> {
        namespace::make(kubectl, &[namespace])?;
        give(kubectl, namespace, DEPLOYMENT)?;
        kubectl.apply(&deployment(namespace).to_string(), &[])?;
        let args = [
            in_namespace(namespace),
            format!("--watch-namespace={namespace}"),
        ];
        let args = [&args, more].concat();
        let name = format!("operator-{namespace}");
        Operator::ours(programs, kubectl.kubeconfig(), &name, logs, &args)
    }

    fn ours(
        programs: &Path,
        kubeconfig: &Path,
        name: &str,
        logs: &Path,
        more: &[String],
    ) -> Result<Operator> {
        let health = port()?;
        let args = [
            "operator".to_owned(),
            "--default-access-type=nodeport".to_owned(),
            "--cluster-host=127.0.0.1".to_owned(),
            "--allow-loopback-tokens".to_owned(),
            format!("--identity={name}"),
            format!("--metrics-address=127.0.0.1:{health}"),
        ];
        let args = [&args, more].concat();
        let program = programs.join("spanwire");
        let mut operator = Operator::run(&program, args, kubeconfig, name, logs)?;
        operator.health = Some(health);
        Ok(operator)
    }

    /// Starts a program that knows the flags which are upstream's too, and gives it the port of its grant server.
    pub(crate) fn run(
        program: &Path,
        mut args: Vec<String>,
        kubeconfig: &Path,
        name: &str,
        logs: &Path,
    ) -> Result<Operator> {
        let grants = port()?;
        args.push(format!("--grant-server-port={grants}"));
        let start = Start {
            program: program.to_owned(),
            args,
            kubeconfig: kubeconfig.to_owned(),
            log: logs.join(format!("{name}.log")),
            grants,
        };
        let child = start.run()?;
        Ok(Operator {
            start,
            health: None,
            child,
        })
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
        let health = self.health.context("it tells of no health")?;
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, health))?;
        stream.set_read_timeout(Some(HEALTH_WITHIN))?;
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
        Ok(http::exchange(&mut stream, &request)?.status)
    }

    /// Has `work` done, and says by how much, in kilobytes, it had more resident at any time meanwhile than before.
    pub fn grows(&self, work: impl FnOnce() -> Result<()>) -> Result<u64> {
        let of = |file| format!("/proc/{}/{file}", self.child.id());
        let peak = || -> Result<u64> {
            let status = std::fs::read_to_string(of("status")).context("read its status")?;
            let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            let size = line.and_then(|line| line.trim().strip_suffix(" kB"));
            Ok(size.context("no size")?.parse()?)
        };
        // From now on the peak is that of now (proc_pid_clear_refs(5)).
        std::fs::write(of("clear_refs"), "5").context("forget its peak")?;
        let before = peak()?;
        work()?;
        Ok(peak()?.saturating_sub(before))
    }

    /// What it has logged, all its lives together.
    pub fn log(&self) -> Result<String> {
        let log = &self.start.log;
        std::fs::read_to_string(log).with_context(|| format!("read {}", log.display()))
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
            .args(&self.args)
            .env("KUBECONFIG", &self.kubeconfig)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file);
        command
            .spawn()
            .with_context(|| format!("start {}", self.program.display()))
    }
}

/// Leaves a namespace to a controller of this name in it.
pub(crate) fn give(kubectl: &Kubectl, namespace: &str, controller: &str) -> Result<()> {
    let map = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "skupper", "namespace": namespace},
        "data": {"controller": controller},
    });
    kubectl.apply(&map.to_string(), &[]).map(drop)
}

fn in_namespace(name: &str) -> String {
    format!("--namespace={name}")
}

/// The Deployment of an operator that runs elsewhere.
fn deployment(namespace: &str) -> Value {
    // It looks at those alone that have the second.
    let labels = json!({
        "app.kubernetes.io/name": DEPLOYMENT,
        "app.kubernetes.io/part-of": "skupper",
    });
    let container = json!({"name": "controller", "image": "spanwire:dev"});
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": DEPLOYMENT, "namespace": namespace, "labels": labels},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    })
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
