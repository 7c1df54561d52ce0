//! What does every test need: a pod, and patience with an end?

use crate::api::Api;
use crate::folder::Folder;
use crate::router::Router;
use spanwire_router::report::Report;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Nothing in these tests takes longer.
const DEADLINE: Duration = Duration::from_secs(30);

/// A pod: its folders, an adaptor, a router, and the API server that it reports to.
pub(crate) struct Pod {
    pub(crate) folder: Folder,
    pub(crate) router: Router,
    pub(crate) api: Api,
    pub(crate) certs: PathBuf,
    /// Where the adaptor finds the router.
    pub(crate) management: String,
    health: String,
    adaptor: Option<Child>,
    home: TempDir,
}

impl Pod {
    /// A pod whose router runs and whose adaptor does not yet.
    pub(crate) fn new(id: &str, mode: &str) -> Self {
        let home = TempDir::new().unwrap();
        let path = |name: &str| home.path().join(name);
        fs::create_dir(path("certs")).unwrap();
        let router = Router::start(home.path(), id, mode);
        Self {
            folder: Folder::new(path("config")),
            management: router.management.clone(),
            router,
            api: Api::start(),
            certs: path("certs"),
            health: format!("127.0.0.1:{}", free_port()),
            adaptor: None,
            home,
        }
    }

    /// Starts the adaptor.
    pub(crate) fn start(&mut self) {
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.home.path().join("adaptor.log"))
            .unwrap();
        let adaptor = Command::new(env!("CARGO_BIN_EXE_spanwire-adaptor"))
            .env("RUST_LOG", "info")
            .arg("--config-dir")
            .arg(self.home.path().join("config"))
            .arg("--certs-dir")
            .arg(&self.certs)
            .args(["--management", &self.management])
            .args(["--health", &self.health])
            .args(["--api-server", &self.api.url])
            .args([
                "--namespace",
                "west",
                "--pod-name",
                "pod-1",
                "--pod-uid",
                "uid-1",
            ])
            .stdin(Stdio::null())
            .stdout(log)
            .spawn();
        self.adaptor = Some(adaptor.unwrap());
    }

    /// Kills the adaptor outright.
    pub(crate) fn kill(&mut self) {
        if let Some(mut adaptor) = self.adaptor.take() {
            adaptor.kill().unwrap();
            adaptor.wait().unwrap();
        }
    }

    /// Asks the adaptor to stop; its exit code, and how long that took.
    pub(crate) fn terminate(&mut self) -> (Option<i32>, Duration) {
        let mut adaptor = self.adaptor.take().unwrap();
        let started = Instant::now();
        Command::new("kill")
            .args(["-TERM", &adaptor.id().to_string()])
            .status()
            .unwrap();
        (adaptor.wait().unwrap().code(), started.elapsed())
    }

    /// Waits for a report of this revision that says so.
    pub(crate) fn reported(
        &self,
        what: &str,
        revision: &str,
        is_so: impl Fn(&Report) -> bool,
    ) -> Report {
        eventually(what, || {
            let report = self.api.report();
            report.revision == revision && report.settled && is_so(&report)
        });
        self.api.report()
    }

    pub(crate) fn is_ready(&self) -> bool {
        get(&self.health, "/healthz").0 == 200
    }

    pub(crate) fn is_alive(&self) -> bool {
        get(&self.health, "/livez").0 == 200
    }

    pub(crate) fn metrics(&self) -> String {
        get(&self.health, "/metrics").1
    }

    /// The resident memory of the adaptor, in kB.
    pub(crate) fn memory(&self) -> u64 {
        let status = format!("/proc/{}/status", self.adaptor.as_ref().unwrap().id());
        let status = fs::read_to_string(status).unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("VmRSS:"))
            .unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// The files and sockets that the adaptor holds open.
    pub(crate) fn descriptors(&self) -> usize {
        let folder = format!("/proc/{}/fd", self.adaptor.as_ref().unwrap().id());
        fs::read_dir(folder).unwrap().count()
    }

    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.home.path().join("adaptor.log")).unwrap_or_default()
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            println!("--- the adaptor's log\n{}", self.log());
            println!("--- the last report\n{:#?}", self.api.report());
        }
    }
}

/// Waits until something is so.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !is_so() {
        assert!(Instant::now() < end, "not within {DEADLINE:?}: {what}");
        sleep(Duration::from_millis(5));
    }
}

/// Watches that something is not so for a while: the one wait here that is not for a condition.
pub(crate) fn never(what: &str, length: Duration, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + length;
    while Instant::now() < end {
        assert!(!is_so(), "{what}");
        sleep(Duration::from_millis(50));
    }
}

/// A port that nothing uses, and that nothing is given: below those that the kernel hands out, and
/// each once.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let next = std::process::id()
            .wrapping_mul(97)
            .wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = u16::try_from(12_000 + next % 20_000).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Status and body of a GET; 0 if there is no answer.
pub(crate) fn get(address: &str, path: &str) -> (u16, String) {
    let answer = || -> std::io::Result<String> {
        let address: SocketAddr = address.parse().unwrap();
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = answer().unwrap_or_default();
    let status = answer
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .unwrap_or(0);
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (status, body.to_owned())
}
