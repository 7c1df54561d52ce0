//! Which router does a test run against?
//!
//! The one place that starts one: a real router where `SPANWIRE_SKROUTERD` names its binary, else
//! the stand-in.

use crate::bed::{eventually, free_port, get};
use serde_json::json;
use spanwire_standin::{Standin, read_config};
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::runtime::Runtime;

/// A router with nothing but its bootstrap configuration.
pub(crate) struct Router {
    pub(crate) management: String,
    health: String,
    config: PathBuf,
    running: Option<Running>,
}

enum Running {
    Real(Child),
    StandIn(Runtime, Standin),
}

impl Router {
    /// Starts one and waits until it is operational.
    pub(crate) fn start(folder: &Path, id: &str, mode: &str) -> Self {
        let (management, health) = (free_port(), free_port());
        let config = folder.join(format!("{id}.json"));
        // As the image's start script expands it.
        let bootstrap = json!([
            ["router", { "id": format!("{id}-${{HOSTNAME}}"), "mode": mode, "helloMaxAgeSeconds": "3" }],
            ["listener", { "name": "amqp", "host": "127.0.0.1", "port": management }],
            ["listener", {
                "name": "@9090", "role": "normal", "host": "127.0.0.1", "port": health,
                "http": true, "httpRootDir": "disabled", "healthz": true, "metrics": true
            }],
            ["address", { "prefix": "mc", "distribution": "multicast" }]
        ]);
        fs::write(&config, bootstrap.to_string().replace("${HOSTNAME}", "0")).unwrap();
        let mut router = Self {
            management: format!("127.0.0.1:{management}"),
            health: format!("127.0.0.1:{health}"),
            config,
            running: None,
        };
        router.run();
        router
    }

    /// Starts it again after [`Router::kill`].
    pub(crate) fn run(&mut self) {
        self.running = Some(
            if let Some(binary) = std::env::var_os("SPANWIRE_SKROUTERD") {
                let log = fs::File::create(self.config.with_extension("log")).unwrap();
                let mut command = Command::new(binary);
                command.arg("-c").arg(&self.config).stdin(Stdio::null());
                command.stdout(log.try_clone().unwrap()).stderr(log);
                Running::Real(command.spawn().unwrap())
            } else {
                let runtime = Runtime::new().unwrap();
                let config = read_config(&self.config).unwrap();
                let standin = {
                    let _within = runtime.enter();
                    Standin::start(config, |_| ()).unwrap()
                };
                Running::StandIn(runtime, standin)
            },
        );
        eventually("the router is operational", || {
            get(&self.health, "/healthz").0 == 200
        });
    }

    /// Ends it at once.
    pub(crate) fn kill(&mut self) {
        match self.running.take() {
            Some(Running::Real(mut child)) => {
                child.kill().unwrap();
                child.wait().unwrap();
            }
            Some(Running::StandIn(runtime, standin)) => {
                drop(standin);
                // Its ports are free when its tasks are gone.
                runtime.shutdown_timeout(Duration::from_secs(2));
                eventually("its port is free", || {
                    TcpListener::bind(&self.management).is_ok()
                });
            }
            None => {}
        }
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        self.kill();
    }
}
