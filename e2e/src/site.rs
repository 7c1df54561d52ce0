//! What does a site give to others, and take from them? As its owner sees it, on a control plane of a test's own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::RootCertStore;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::server::WebPkiClientVerifier;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use serde_json::{Value, json};
use url::Url;

use crate::kubectl::{Kubectl, condition, has_condition, text};
use crate::scene::ours;
use crate::{namespace, wait};

const WITHIN: Duration = Duration::from_mins(1);

/// A site in a namespace of its name.
#[derive(Clone, Debug)]
pub struct Site {
    kubectl: Kubectl,
    name: String,
    pub uid: String,
}

/// What whoever redeems a grant gets.
#[derive(Clone, Debug)]
pub struct Given {
    /// The Secret of the CA that vouches for the site and for who links to it.
    pub authority: Value,
    /// The endpoints of each Link.
    pub groups: Vec<Value>,
}

impl Site {
    /// Makes it, and its namespace.
    pub fn make(kubectl: &Kubectl, name: &str, spec: &Value) -> Result<Site> {
        namespace::make(kubectl, &[name])?;
        let mut site = Site {
            kubectl: kubectl.clone(),
            name: name.to_owned(),
            uid: String::new(),
        };
        site.apply(&ours("Site", name, spec))?;
        let made = site.find("site", name)?.context("the site")?;
        text(&made["metadata"]["uid"]).clone_into(&mut site.uid);
        Ok(site)
    }

    /// What it gives, once it can be linked to.
    pub fn given(&self) -> Result<Given> {
        let made = self.wait("site", &self.name, |site| {
            !site["status"]["endpoints"].is_null()
        })?;
        let mut groups: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
        for endpoint in made["status"]["endpoints"].as_array().into_iter().flatten() {
            let group = groups.entry(text(&endpoint["group"])).or_default();
            group.push(endpoint.clone());
        }
        Ok(Given {
            authority: self.wait("secret", "skupper-site-ca", |_| true)?,
            groups: groups.into_values().map(Value::from).collect(),
        })
    }

    /// Makes a grant, and gives it back once it can be redeemed.
    pub fn grant(&self, name: &str, spec: &Value) -> Result<Value> {
        self.apply(&ours("AccessGrant", name, spec))?;
        self.wait("accessgrant", name, |grant| has_condition(grant, "Ready"))
    }

    /// Makes a token.
    pub fn token(&self, name: &str, spec: &Value) -> Result<()> {
        self.apply(&ours("AccessToken", name, spec))
    }

    /// Waits until a token is redeemed.
    pub fn redeemed(&self, token: &str) -> Result<()> {
        let token = self.wait("accesstoken", token, |token| {
            has_condition(token, "Redeemed")
        })?;
        ensure!(token["status"]["redeemed"] == true, "{}", token["status"]);
        ensure!(token["status"]["message"] == "OK", "{}", token["status"]);
        Ok(())
    }

    /// Waits until a token is refused for this reason.
    pub fn refused(&self, token: &str, reason: &str) -> Result<()> {
        let token = self.wait("accesstoken", token, |token| {
            condition(token, "Redeemed").is_some_and(|redeemed| redeemed["reason"] == reason)
        })?;
        ensure!(token["status"]["status"] == "Error", "{}", token["status"]);
        ensure!(token["status"]["redeemed"] == false, "{}", token["status"]);
        Ok(())
    }

    /// Fails unless a redeemed token has left what was given, at this cost if one was asked for.
    pub fn holds(&self, token: &str, given: &Given, cost: Option<i64>) -> Result<()> {
        let secret = self.find("secret", token)?.context("the Secret")?;
        ensure!(secret["type"] == "kubernetes.io/tls", "{}", secret["type"]);
        ensure!(self.owns(&secret), "{}", secret["metadata"]);
        vouched(&secret, &given.authority)?;

        let mut links = self.links(token)?;
        let names: Vec<String> = match given.groups.len() {
            1 => vec![token.to_owned()],
            several => (1..=several)
                .map(|number| format!("{token}-{number}"))
                .collect(),
        };
        ensure!(
            names == links.keys().cloned().collect::<Vec<_>>(),
            "{links:?}"
        );
        for endpoints in &given.groups {
            // In which order the groups come is not said.
            let is_there = |link: &Value| link["spec"]["endpoints"] == *endpoints;
            let found = links.iter().find(|(_, link)| is_there(link));
            let found = found.map(|(name, _)| name.clone());
            let found = found.with_context(|| format!("no Link of {links:?} has {endpoints}"))?;
            let link = links.remove(&found).unwrap_or_default();
            ensure!(self.owns(&link), "{}", link["metadata"]);
            ensure!(link["spec"]["cost"].as_i64() == cost, "{}", link["spec"]);
        }
        Ok(())
    }

    /// Fails if a token has left anything.
    pub fn holds_nothing(&self, token: &str) -> Result<()> {
        ensure!(self.find("secret", token)?.is_none(), "there is a Secret");
        ensure!(self.links(token)?.is_empty(), "there is a Link");
        Ok(())
    }

    /// The Links with a token's credentials, by name.
    fn links(&self, token: &str) -> Result<BTreeMap<String, Value>> {
        let mut links = self
            .kubectl
            .items(&["links.skupper.io", "--namespace", &self.name])?;
        links.retain(|link| link["spec"]["tlsCredentials"] == token);
        let named = links.into_iter();
        Ok(named
            .map(|link| (text(&link["metadata"]["name"]).to_owned(), link))
            .collect())
    }

    fn owns(&self, object: &Value) -> bool {
        let owner = &object["metadata"]["ownerReferences"][0];
        owner["kind"] == "Site" && owner["uid"] == self.uid
    }

    fn apply(&self, object: &Value) -> Result<()> {
        let here = ["--namespace", &self.name];
        self.kubectl.apply(&object.to_string(), &here).map(drop)
    }

    /// An object, if it is there.
    pub fn find(&self, kind: &str, name: &str) -> Result<Option<Value>> {
        self.kubectl.find(&[kind, name, "--namespace", &self.name])
    }

    /// Looks at an object until `is_so` holds, and fails with what it was at last.
    fn wait(&self, kind: &str, name: &str, is_so: impl Fn(&Value) -> bool) -> Result<Value> {
        let mut last = Value::Null;
        let found = wait::until(&format!("{kind} {name}"), WITHIN, || {
            last = self.find(kind, name)?.unwrap_or_default();
            Ok(Some(last.clone()).filter(|object| !object.is_null() && is_so(object)))
        });
        found.with_context(|| format!("its status is {}", last["status"]))
    }
}

/// The spec of a token for a grant whose server is reached at this port, as if by way of the one in the grant's url.
pub fn token_for(grant: &Value, port: u16) -> Result<Value> {
    let status = &grant["status"];
    let mut url = Url::parse(text(&status["url"])).context("the grant's url")?;
    url.set_port(Some(port))
        .ok()
        .context("a port in the grant's url")?;
    Ok(json!({"url": url.as_str(), "code": status["code"], "ca": status["ca"]}))
}

/// Fails unless a Secret holds a pair with which its holder is let in by whoever trusts this CA, and that CA itself.
fn vouched(secret: &Value, authority: &Value) -> Result<()> {
    let ca = certificates(authority, "tls.crt")?;
    ensure!(certificates(secret, "ca.crt")? == ca, "another CA");
    let chain = certificates(secret, "tls.crt")?;
    let key = PrivateKeyDer::from_pem_slice(&file(secret, "tls.key")?)?;
    let mut roots = RootCertStore::empty();
    ca.into_iter()
        .try_for_each(|certificate| roots.add(certificate))?;
    let provider = Arc::new(default_provider());
    CertifiedKey::from_der(chain.clone(), key, &provider)?;
    let client_verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let (leaf, rest) = chain.split_first().context("a certificate")?;
    let result = client_verifier
        .build()?
        .verify_client_cert(leaf, rest, UnixTime::now());
    result.map(drop).context("nobody would let it in")
}

fn certificates(secret: &Value, name: &str) -> Result<Vec<CertificateDer<'static>>> {
    let file = file(secret, name)?;
    let all = CertificateDer::pem_slice_iter(&file).collect::<Result<_, _>>();
    all.with_context(|| format!("parse {name}"))
}

fn file(secret: &Value, name: &str) -> Result<Vec<u8>> {
    let file = STANDARD.decode(text(&secret["data"][name]));
    file.with_context(|| format!("decode {name}"))
}
