//! Router processes for tests: the stand-in, and a real router where there is one.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// One router program.
pub(crate) struct Program {
    path: PathBuf,
}

/// All programs that a fact is asked of.
pub(crate) fn programs() -> Vec<Program> {
    let standin = Program {
        path: env!("CARGO_BIN_EXE_spanwire-standin").into(),
    };
    let real = std::env::var_os("SPANWIRE_SKROUTERD");
    let real = real.map(|path| Program { path: path.into() });
    std::iter::once(standin).chain(real).collect()
}

/// A running router, its folder and its ports. Killed when dropped.
pub(crate) struct Router {
    child: Child,
    pub(crate) folder: TempDir,
    pub(crate) amqp: u16,
    pub(crate) http: u16,
}

/// A port that nobody listens on, below those that outgoing connections are given.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let base = 10_000 + u16::try_from(std::process::id() % 200).unwrap() * 100;
    loop {
        let port = base + NEXT.fetch_add(1, Ordering::Relaxed) % 2000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// The configuration that always starts: no TLS at all.
pub(crate) fn bootstrap(id: &str, mode: &str, amqp: u16, http: u16) -> Vec<Value> {
    vec![
        json!(["router", {"id": id, "mode": mode, "helloMaxAgeSeconds": "3"}]),
        json!(["log", {"module": "DEFAULT", "enable": "info+"}]),
        json!(["site", {"name": "site", "namespace": "ns", "platform": "kubernetes"}]),
        json!(["address", {"prefix": "mc", "distribution": "multicast"}]),
        json!(["listener", {"name": "amqp", "host": "127.0.0.1", "port": amqp}]),
        json!(["listener", {"name": "@9090", "role": "normal", "host": "127.0.0.1", "port": http,
            "http": true, "httpRootDir": "disabled", "healthz": true, "metrics": true}]),
    ]
}

impl Program {
    /// Starts with the bootstrap and waits until it is operational.
    pub(crate) fn start(&self, id: &str) -> Router {
        self.start_with(id, "interior", |_, _| {})
    }

    /// The same, with more entities; `add` is told the folder.
    pub(crate) fn start_with(
        &self,
        id: &str,
        mode: &str,
        add: impl FnOnce(&Path, &mut Vec<Value>),
    ) -> Router {
        let mut router = self.spawn(id, mode, add);
        let deadline = Instant::now() + Duration::from_secs(10);
        while get(router.http, "/healthz").is_none_or(|page| !page.starts_with("HTTP/1.1 200")) {
            assert!(
                Instant::now() < deadline,
                "not operational:\n{}",
                router.log()
            );
            assert!(
                router.child.try_wait().unwrap().is_none(),
                "exited:\n{}",
                router.log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        router
    }

    fn spawn(&self, id: &str, mode: &str, add: impl FnOnce(&Path, &mut Vec<Value>)) -> Router {
        let folder = TempDir::new().unwrap();
        let (amqp, http) = (free_port(), free_port());
        let mut entities = bootstrap(id, mode, amqp, http);
        add(folder.path(), &mut entities);
        let config = folder.path().join("skrouterd.json");
        fs::write(&config, Value::Array(entities).to_string()).unwrap();
        let child = self.run(folder.path(), &config);
        Router {
            child,
            folder,
            amqp,
            http,
        }
    }

    fn run(&self, folder: &Path, config: &Path) -> Child {
        let log = File::create(folder.join("log")).unwrap();
        Command::new(&self.path)
            .arg("-c")
            .arg(config)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap()
    }

    /// Starts with more entities and waits for its exit: status and log.
    pub(crate) fn fail_with(
        &self,
        add: impl FnOnce(&Path, &mut Vec<Value>),
    ) -> (ExitStatus, String) {
        let mut router = self.spawn("site-a", "interior", add);
        let status = router.exit_status();
        (status, router.log())
    }

    /// Starts on this text and waits for its exit.
    pub(crate) fn fail_on(&self, text: &str) -> (ExitStatus, String) {
        let folder = TempDir::new().unwrap();
        let config = folder.path().join("skrouterd.json");
        fs::write(&config, text).unwrap();
        let child = self.run(folder.path(), &config);
        let mut router = Router {
            child,
            folder,
            amqp: 0,
            http: 0,
        };
        let status = router.exit_status();
        (status, router.log())
    }
}

impl Router {
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .arg(format!("-{name}"))
            .arg(self.child.id().to_string())
            .status();
        assert!(status.unwrap().success());
    }

    pub(crate) fn exit_status(&mut self) -> ExitStatus {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "still running:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The whole answer to a GET, or nothing if there was none.
pub(crate) fn get(port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )
    .ok()?;
    let mut page = String::new();
    stream.read_to_string(&mut page).ok()?;
    (!page.is_empty()).then_some(page)
}

/// Is anybody listening there?
pub(crate) fn is_open(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}
