//! Does who trusts only this CA take a server for who it says it is? Asked of programs of others, as each library that
//! verifies certificates has rules of its own.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use tempfile::TempDir;

use crate::command;
use crate::kubectl::{Kubectl, text};
use crate::wait;

const WITHIN: Duration = Duration::from_secs(20);
/// What the page begins with that the server shows.
const PAGE: &str = "<HTML>";

/// Whose rules count.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verifier {
    /// The router's library.
    OpenSsl,
    /// The library of everything that is written in Go, such as kubectl.
    Go,
}

impl Verifier {
    pub const ALL: [Verifier; 2] = [Verifier::OpenSsl, Verifier::Go];

    /// How it says that no chain leads to what is trusted.
    pub fn refusal(self) -> &'static str {
        match self {
            Verifier::OpenSsl => "certificate verify failed",
            Verifier::Go => "certificate signed by unknown authority",
        }
    }
}

/// Whether this machine has the program that servers are made with.
pub fn is_there() -> bool {
    Command::new("openssl").arg("version").output().is_ok()
}

/// A TLS server on loopback that shows a credential, and lets in who shows one that it trusts.
#[derive(Debug)]
pub struct Server {
    child: Child,
    address: String,
    _folder: TempDir,
}

impl Server {
    /// One with the credential that is the data of a Secret.
    pub fn start(data: &Value) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let log = folder.path().join("log");
        let mut server = openssl("s_server", &store(folder.path(), data)?);
        server
            .args(["-accept", "127.0.0.1:0", "-www", "-Verify", "9"])
            .stdin(Stdio::null())
            .stdout(File::create(&log)?)
            .stderr(Stdio::null());
        let mut server = Server {
            child: server.spawn().context("start openssl")?,
            address: String::new(),
            _folder: folder,
        };
        server.address = wait::until("the server to listen", WITHIN, || {
            let log = std::fs::read_to_string(&log)?;
            let mut lines = log.split_inclusive('\n');
            let address = lines.find_map(|line| line.strip_prefix("ACCEPT ")?.strip_suffix('\n'));
            Ok(address.map(str::to_owned))
        })?;
        Ok(server)
    }

    /// Calls it by this name, with the credential that is the data of a Secret; an error quotes who refused whom.
    pub fn call(
        &self,
        verifier: Verifier,
        data: &Value,
        host: &str,
        kubectl: &Kubectl,
    ) -> Result<()> {
        let folder = tempfile::tempdir()?;
        let files = store(folder.path(), data)?;
        let mut client = match verifier {
            Verifier::OpenSsl => self.s_client(&files, host),
            Verifier::Go => self.kubectl(kubectl, &files, host),
        };
        let answer = command::answer(&mut client, Some(b"GET / HTTP/1.0\r\n\r\n"), WITHIN)?;
        let page = answer.ok(&format!("{verifier:?}"))?;
        ensure!(page.contains(PAGE), "{verifier:?} got no page: {page}");
        Ok(())
    }

    fn s_client(&self, files: &Files, host: &str) -> Command {
        let mut client = openssl("s_client", files);
        client
            .args(["-quiet", "-connect", &self.address])
            .args(["-verify_hostname", host]);
        client
    }

    fn kubectl(&self, kubectl: &Kubectl, files: &Files, host: &str) -> Command {
        let mut client = kubectl.command(["get", "--raw", "/version", "--tls-server-name", host]);
        client
            .arg(format!("--server=https://{}", self.address))
            .arg(files.flag("--certificate-authority=", "ca.crt"))
            .arg(files.flag("--client-certificate=", "tls.crt"))
            .arg(files.flag("--client-key=", "tls.key"))
            // Nothing of the cluster that it otherwise talks to.
            .env("KUBECONFIG", "/dev/null");
        client
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where the files of a credential are.
struct Files(PathBuf);

impl Files {
    fn flag(&self, flag: &str, file: &str) -> String {
        format!("{flag}{}", self.0.join(file).display())
    }
}

/// Writes down the files of a credential, and what follows the first certificate in a file of its own.
fn store(folder: &Path, data: &Value) -> Result<Files> {
    for name in ["ca.crt", "tls.crt", "tls.key"] {
        std::fs::write(folder.join(name), STANDARD.decode(text(&data[name]))?)?;
    }
    let own = std::fs::read_to_string(folder.join("tls.crt"))?;
    let end = "-----END CERTIFICATE-----";
    let (_, chain) = own.split_once(end).context("a certificate")?;
    if chain.contains(end) {
        std::fs::write(folder.join("chain"), chain)?;
    }
    Ok(Files(folder.to_owned()))
}

/// One side of a connection that checks the other by what it was given, and by nothing of this machine's.
fn openssl(side: &str, files: &Files) -> Command {
    let file = |name: &str| files.0.join(name);
    let mut command = Command::new("openssl");
    command
        .args([side, "-verify_return_error", "-no-CApath", "-no-CAstore"])
        .args([Path::new("-CAfile"), &file("ca.crt")])
        .args([Path::new("-cert"), &file("tls.crt")])
        .args([Path::new("-key"), &file("tls.key")]);
    if file("chain").exists() {
        command.args([Path::new("-cert_chain"), &file("chain")]);
    }
    command
}
