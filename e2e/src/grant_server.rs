//! What does upstream's grant server answer? One of a test's own that does as `facts/skupper-v2.md` §7 says, and counts.
//!
//! It knows no nonce: each request that it grants is a redemption.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::credential::{Authority, Files, Holder};
use crate::peer::{Caller, Peer, Request};
use crate::site::Given;
use crate::wait;

/// What Go's server gathers of an answer before it sends a part; a longer answer tells no length.
const GATHERED: usize = 2048;
/// The longest that an answer is held back.
const HELD: Duration = Duration::from_mins(1);

/// What is granted.
#[derive(Clone, Debug)]
pub struct Offer {
    pub redemptions_allowed: usize,
    pub is_expired: bool,
    /// The routers that can be linked to.
    pub groups: Vec<&'static str>,
}

impl Default for Offer {
    fn default() -> Self {
        Offer {
            redemptions_allowed: 1,
            is_expired: false,
            groups: vec!["skupper-router"],
        }
    }
}

/// A grant server on loopback, for one site.
#[derive(Debug)]
pub struct GrantServer {
    peer: Peer,
    grants: Arc<Grants>,
}

#[derive(Debug)]
struct Grants {
    site: Authority,
    by_uid: Mutex<BTreeMap<String, Grant>>,
    holds: AtomicBool,
}

#[derive(Clone, Debug)]
struct Grant {
    offer: Offer,
    redemptions: usize,
    /// The headers `name` and `subject` of the last redemption.
    redeemer: Option<(String, String)>,
}

/// A status and what is said with it.
type Refusal = (u16, &'static str);

impl GrantServer {
    /// Starts one, which runs as long as the process.
    pub fn start() -> Result<GrantServer> {
        let grants = Arc::new(Grants {
            site: Authority::new("other site")?,
            by_uid: Mutex::default(),
            holds: AtomicBool::new(false),
        });
        let answering = grants.clone();
        let peer = Peer::start(move |request, caller| {
            let answer = answering.answer(request);
            // A caller that is gone is what some tests are about.
            let _ = match answer {
                Ok(document) => grant(caller, &document),
                Err(refusal) => refuse(caller, refusal),
            };
        })?;
        Ok(GrantServer { peer, grants })
    }

    /// Grants something under a uid, and gives back the spec of a token for it.
    pub fn offer(&self, uid: &str, offer: Offer) -> Value {
        let grant = Grant {
            offer,
            redemptions: 0,
            redeemer: None,
        };
        self.grants.lock().insert(uid.to_owned(), grant);
        json!({"url": self.peer.url(uid), "code": code(uid), "ca": self.peer.ca()})
    }

    /// What a redemption gives.
    pub fn given(&self, offer: &Offer) -> Given {
        Given {
            authority: self.grants.site.own_secret("skupper-site-ca"),
            groups: offer.groups.iter().map(|group| endpoints(group)).collect(),
        }
    }

    /// How often somebody asked for this grant.
    pub fn requests(&self, uid: &str) -> usize {
        self.peer.hits(uid)
    }

    /// How often it was granted.
    pub fn redemptions(&self, uid: &str) -> usize {
        self.grants
            .lock()
            .get(uid)
            .map_or(0, |grant| grant.redemptions)
    }

    /// The headers `name` and `subject` of who redeemed it last.
    pub fn redeemer(&self, uid: &str) -> Option<(String, String)> {
        self.grants.lock().get(uid)?.redeemer.clone()
    }

    /// Whether what is granted from now on is counted, and not answered.
    pub fn hold(&self, holds: bool) {
        self.grants.holds.store(holds, Ordering::Relaxed);
    }
}

impl Grants {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Grant>> {
        self.by_uid.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, request: &Request) -> Result<String, Refusal> {
        let (name, subject, groups) = self.count(request)?;
        wait::quietly(HELD, || !self.holds.load(Ordering::Relaxed));
        self.document(&name, &subject, &groups)
            .map_err(|_| (500, "Could not get issuer for requested certificate"))
    }

    /// Counts a redemption, in upstream's order: before there is anything to answer.
    fn count(&self, request: &Request) -> Result<(String, String, Vec<&'static str>), Refusal> {
        if request.method != "POST" {
            return Err((405, "Only POST is supported"));
        }
        let uid = request.path.replace('/', "");
        let mut grants = self.lock();
        let grant = grants.get_mut(&uid).ok_or((404, "No such claim"))?;
        if grant.offer.is_expired {
            return Err((404, "No such claim"));
        }
        if grant.redemptions >= grant.offer.redemptions_allowed {
            return Err((404, "No such access granted"));
        }
        if request.body != code(&uid) {
            return Err((403, "Redemption of access token refused"));
        }
        grant.redemptions += 1;
        let header = |name, default: &str| request.header(name).unwrap_or(default).to_owned();
        let name = header("name", &uid);
        let subject = header("subject", &name);
        grant.redeemer = Some((name.clone(), subject.clone()));
        Ok((name, subject, grant.offer.groups.clone()))
    }

    /// The Secret, and a Link for each group of routers.
    fn document(&self, name: &str, subject: &str, groups: &[&str]) -> Result<String> {
        let hosts = groups.iter().map(|group| host(group)).collect();
        let files = self.site.files(subject, &Holder::Router(hosts))?;
        let mut document = secret(name, &files)?;
        for (number, group) in (1..).zip(groups) {
            let link_name = match groups.len() {
                1 => name.to_owned(),
                _ => format!("{name}-{number}"),
            };
            document += &link(&link_name, group, name)?;
        }
        Ok(document)
    }
}

fn code(uid: &str) -> String {
    format!("code-of-{uid}")
}

fn host(group: &str) -> String {
    format!("{group}.example")
}

fn endpoints(group: &str) -> Value {
    json!([
        {"name": "inter-router", "host": host(group), "port": "55671", "group": group},
        {"name": "edge", "host": host(group), "port": "45671", "group": group},
    ])
}

fn secret(name: &str, files: &Files) -> Result<String> {
    let [ca, certificate, key] =
        [&files.ca, &files.certificate, &files.key].map(|file| STANDARD.encode(file));
    let mut text = String::new();
    write!(
        text,
        "---\napiVersion: v1\ndata:\n  ca.crt: {ca}\n  tls.crt: {certificate}\n  tls.key: {key}\nkind: \
         Secret\nmetadata:\n  creationTimestamp: null\n  name: {name}\ntype: kubernetes.io/tls\n"
    )?;
    Ok(text)
}

fn link(name: &str, group: &str, credentials: &str) -> Result<String> {
    let mut text = "---\napiVersion: skupper.io/v2alpha1\nkind: Link\n".to_owned();
    write!(
        text,
        "metadata:\n  creationTimestamp: null\n  name: {name}\nspec:\n  endpoints:\n"
    )?;
    for endpoint in endpoints(group).as_array().context("endpoints")? {
        let field = |name: &str| &endpoint[name];
        writeln!(
            text,
            "  - group: {}\n    host: {}\n    name: {}\n    port: {}",
            field("group"),
            field("host"),
            field("name"),
            field("port")
        )?;
    }
    write!(text, "  tlsCredentials: {credentials}\nstatus: {{}}\n")?;
    Ok(text)
}

/// A good answer, in parts.
fn grant(caller: &mut Caller, document: &str) -> std::io::Result<()> {
    caller.write_all(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n",
    )?;
    for part in document.as_bytes().chunks(GATHERED) {
        write!(caller, "{:x}\r\n", part.len())?;
        caller.write_all(part)?;
        caller.write_all(b"\r\n")?;
    }
    caller.write_all(b"0\r\n\r\n")
}

fn refuse(caller: &mut Caller, (status, text): Refusal) -> std::io::Result<()> {
    write!(
        caller,
        "HTTP/1.1 {status} No\r\nContent-Type: text/plain; charset=utf-8\r\nX-Content-Type-Options: \
         nosniff\r\nContent-Length: {}\r\n\r\n{text}\n",
        text.len() + 1
    )
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::redeemer::{Grant, Redeemer};

    #[test]
    fn a_request_is_refused_in_upstreams_order_and_words() -> Result<()> {
        let server = GrantServer::start()?;
        let redeemer = Redeemer {
            source: Ipv4Addr::LOCALHOST,
            subject: "site".to_owned(),
            nonce: Some("not heeded".to_owned()),
        };
        let ask = |uid: &str, code: &str| {
            let status = json!({"url": server.peer.url(uid), "ca": server.peer.ca(), "code": code});
            let grant =
                Grant::of(&json!({"metadata": {"name": "g", "uid": uid}, "status": status}))?;
            let said = redeemer.redeem(server.peer.address(), &grant)?;
            anyhow::Ok((said.status, said.body))
        };
        let expired = Offer {
            is_expired: true,
            ..Offer::default()
        };
        server.offer("old", expired);
        server.offer("new", Offer::default());
        let said = [
            ("none", "code-of-none", 404, "No such claim\n"),
            ("old", "code-of-old", 404, "No such claim\n"),
            ("new", "guess", 403, "Redemption of access token refused\n"),
        ];
        for (uid, code, status, text) in said {
            assert_eq!(ask(uid, code)?, (status, text.to_owned()), "{uid}");
        }
        assert_eq!(server.redemptions("new"), 0);
        assert_eq!(ask("new", "code-of-new")?.0, 200);
        let again = ask("new", "guess")?;
        assert_eq!(again, (404, "No such access granted\n".to_owned()));
        assert_eq!((server.requests("new"), server.redemptions("new")), (3, 1));
        let redeemer = ("g".to_owned(), "site".to_owned());
        assert_eq!(server.redeemer("new"), Some(redeemer));
        Ok(())
    }
}
