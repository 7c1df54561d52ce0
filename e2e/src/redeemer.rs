//! What does another site do that redeems a grant, from a machine of its own?

use std::collections::HashMap;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketType};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use url::{Host, Url};

use crate::http::{self, Line, Said};
use crate::kubectl::{Kubectl, has_condition, text};
use crate::scene::ours;
use crate::wait;

/// How long many grants may take to be ready.
const READY_WITHIN: Duration = Duration::from_mins(5);
const WITHIN: Duration = Duration::from_secs(15);

/// A grant, as its status tells the world of it.
#[derive(Clone, Debug)]
pub struct Grant {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub code: String,
    /// Where its url says that it is redeemed.
    pub server: (Ipv4Addr, u16),
    tls: Arc<ClientConfig>,
}

/// One redeemer: who asks.
#[derive(Clone, Debug)]
pub struct Redeemer {
    /// The address that it calls from, of this machine.
    pub source: Ipv4Addr,
    pub subject: String,
    /// What makes a repeat one; a client of upstream has none.
    pub nonce: Option<String>,
}

impl Grant {
    /// Makes grants by their names and by how often each may be redeemed, and gives them back in their order once all are
    /// ready.
    pub fn make<'a>(
        kubectl: &Kubectl,
        namespace: &str,
        wanted: impl IntoIterator<Item = (&'a str, usize)>,
    ) -> Result<Vec<Grant>> {
        let (names, items): (Vec<&str>, Vec<Value>) = wanted
            .into_iter()
            .map(|(name, allowed)| {
                let spec = json!({"redemptionsAllowed": allowed, "expirationWindow": "1h"});
                (name, ours("AccessGrant", name, &spec))
            })
            .unzip();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
        let here = ["--namespace", namespace];
        kubectl.apply(&list.to_string(), &here)?;
        wait::until("grants to be ready", READY_WITHIN, || {
            let stored = kubectl.items(&[&["accessgrants.skupper.io"], &here[..]].concat())?;
            let ready: HashMap<&str, &Value> = stored
                .iter()
                .filter(|grant| has_condition(grant, "Ready"))
                .map(|grant| (text(&grant["metadata"]["name"]), grant))
                .collect();
            let made: Option<Vec<&Value>> =
                names.iter().map(|name| ready.get(name).copied()).collect();
            made.map(|made| made.into_iter().map(Grant::of).collect())
                .transpose()
        })
    }

    /// Reads what a token would be made of.
    pub fn of(object: &Value) -> Result<Grant> {
        let status = &object["status"];
        let url = Url::parse(text(&status["url"])).context("the grant's url")?;
        let (Some(Host::Ipv4(address)), Some(port)) = (url.host(), url.port()) else {
            bail!("{url} does not name an address and a port");
        };
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(text(&status["ca"]).as_bytes()) {
            roots.add(authority?)?;
        }
        let tls = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Grant {
            namespace: text(&object["metadata"]["namespace"]).to_owned(),
            name: text(&object["metadata"]["name"]).to_owned(),
            uid: text(&object["metadata"]["uid"]).to_owned(),
            code: text(&status["code"]).to_owned(),
            server: (address, port),
            tls: Arc::new(tls),
        })
    }

    /// How often it was redeemed: as many as are counted have to be known as claims.
    pub fn redemptions(&self, kubectl: &Kubectl) -> Result<usize> {
        let args = ["accessgrant", &self.name, "--namespace", &self.namespace];
        redemptions(&kubectl.find(&args)?.context("the grant is gone")?)
    }

    /// How often each of a namespace was redeemed, by name.
    pub fn count(kubectl: &Kubectl, namespace: &str) -> Result<HashMap<String, usize>> {
        let grants = kubectl.items(&["accessgrants.skupper.io", "--namespace", namespace])?;
        let counted = grants.iter().map(|grant| {
            let name = text(&grant["metadata"]["name"]);
            Ok((
                name.to_owned(),
                redemptions(grant).context(name.to_owned())?,
            ))
        });
        counted.collect()
    }

    /// A connection to the server, with nothing said yet.
    pub fn call(&self, source: Ipv4Addr, server: (Ipv4Addr, u16)) -> Result<Line> {
        let stream = dial(source, server.into())?;
        stream.set_read_timeout(Some(WITHIN))?;
        stream.set_write_timeout(Some(WITHIN))?;
        stream.set_nodelay(true)?;
        let name = ServerName::from(IpAddr::from(server.0));
        let tls = ClientConnection::new(self.tls.clone(), name)?;
        Ok(StreamOwned::new(tls, stream))
    }
}

impl Redeemer {
    /// Asks once, and hears the answer.
    pub fn redeem(&self, server: (Ipv4Addr, u16), grant: &Grant) -> Result<Said> {
        self.redeem_on(&mut grant.call(self.source, server)?, grant)
    }

    /// Asks on a connection that may have been asked on before, and hears the answer.
    pub fn redeem_on(&self, line: &mut Line, grant: &Grant) -> Result<Said> {
        http::exchange(line, &self.request(grant))
    }

    /// Asks once, and is gone before the answer comes.
    pub fn ask_and_go(&self, server: (Ipv4Addr, u16), grant: &Grant) -> Result<()> {
        let mut line = grant.call(self.source, server)?;
        line.write_all(self.request(grant).as_bytes())?;
        line.flush()?;
        Ok(())
    }

    fn request(&self, grant: &Grant) -> String {
        let nonce = self.nonce.as_ref();
        let nonce = nonce.map_or_else(String::new, |nonce| {
            format!("redemption-nonce: {nonce}\r\n")
        });
        format!(
            "POST /{} HTTP/1.1\r\nhost: x\r\nname: {}\r\nsubject: {}\r\n{nonce}content-length: {}\r\n\r\n{}",
            grant.uid,
            grant.name,
            self.subject,
            grant.code.len(),
            grant.code,
        )
    }
}

fn redemptions(grant: &Value) -> Result<usize> {
    let status = &grant["status"];
    let counted = usize::try_from(status["redemptions"].as_u64().unwrap_or_default())?;
    let claims = status["claims"].as_array().map_or(0, Vec::len);
    ensure!(counted == claims, "{counted} counted, {claims} claims");
    Ok(counted)
}

/// An address of this machine for each redeemer: wrong tries, and those that come too late, are limited by address.
pub fn source(number: usize) -> Ipv4Addr {
    let number = u32::try_from(number).unwrap_or_default();
    Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 1, 0, 1)) + number)
}

/// Connects from an address of this machine.
fn dial(source: Ipv4Addr, server: SocketAddr) -> Result<TcpStream> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
    rustix::net::bind(&socket, &SocketAddr::from((source, 0)))?;
    // Connecting counts as sending.
    set_socket_timeout(&socket, Timeout::Send, Some(WITHIN))?;
    rustix::net::connect(&socket, &server)?;
    Ok(TcpStream::from(socket))
}
