//! What does a user bring who makes credentials by hand: good ones, and ones that are bad in each way that is known?

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
};
use serde_json::{Value, json};

const CA: &str = "ca.crt";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

const HOUR: Duration = Duration::from_hours(1);
/// The API server takes 1 MiB in a Secret, over all files.
const LARGE: usize = 1024 * 1024 - 16 * 1024;

/// What is wrong with a Secret.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    Missing,
    WithoutKey,
    Empty,
    NotPem,
    KeyOfAnother,
    Expired,
    NotYetValid,
    WrongCa,
    ExpiredCa,
    WrongHost,
    TooLarge,
}

impl Fault {
    pub const ALL: [Fault; 11] = [
        Fault::Missing,
        Fault::WithoutKey,
        Fault::Empty,
        Fault::NotPem,
        Fault::KeyOfAnother,
        Fault::Expired,
        Fault::NotYetValid,
        Fault::WrongCa,
        Fault::ExpiredCa,
        Fault::WrongHost,
        Fault::TooLarge,
    ];

    /// The file that is to blame, as far as one is.
    pub fn file(self) -> &'static str {
        match self {
            Fault::Missing => "",
            Fault::WithoutKey | Fault::KeyOfAnother => KEY,
            Fault::WrongCa | Fault::ExpiredCa => CA,
            _ => CERTIFICATE,
        }
    }
}

/// Whom a credential is for.
#[derive(Clone, Debug)]
pub enum Holder {
    /// Somebody who is reached at these hosts; a client needs none.
    Router(Vec<String>),
    /// A CA below the one that signs.
    Authority,
}

/// A CA whose key the user has.
#[derive(Debug)]
pub struct Authority {
    name: String,
    issuer: CertifiedIssuer<'static, KeyPair>,
    key: String,
}

/// A credential, in PEM.
#[derive(Clone, Debug)]
pub struct Files {
    pub ca: String,
    pub certificate: String,
    pub key: String,
}

/// The start and the end of a validity.
type Span = (SystemTime, SystemTime);

impl Authority {
    pub fn new(name: &str) -> Result<Authority> {
        let key = KeyPair::generate()?;
        Ok(Authority {
            name: name.to_owned(),
            key: key.serialize_pem(),
            issuer: CertifiedIssuer::self_signed(authority(name), key)?,
        })
    }

    /// A Secret with the CA itself.
    pub fn own_secret(&self, name: &str) -> Value {
        let certificate = self.issuer.pem();
        let files = [
            (CA, certificate.clone()),
            (CERTIFICATE, certificate),
            (KEY, self.key.clone()),
        ];
        secret(name, files)
    }

    /// The CA as it would be, had it been made for this time.
    fn lived(&self, (start, end): Span) -> Result<String> {
        let mut params = authority(&self.name);
        (params.not_before, params.not_after) = (start.into(), end.into());
        let key = KeyPair::from_pem(&self.key)?;
        Ok(params.self_signed(&key)?.pem())
    }

    /// A good credential of this CA.
    pub fn files(&self, name: &str, holder: &Holder) -> Result<Files> {
        let (params, hosts) = params(name, holder);
        self.issue(params, hosts, now_span())
    }

    fn issue(
        &self,
        mut params: CertificateParams,
        hosts: &[String],
        (start, end): Span,
    ) -> Result<Files> {
        params.subject_alt_names = CertificateParams::new(hosts)?.subject_alt_names;
        (params.not_before, params.not_after) = (start.into(), end.into());
        let key = KeyPair::generate()?;
        Ok(Files {
            ca: self.issuer.pem(),
            certificate: params.signed_by(&key, &self.issuer)?.pem(),
            key: key.serialize_pem(),
        })
    }

    /// A Secret with a credential of this CA; none where the fault is that there is none.
    pub fn secret(
        &self,
        name: &str,
        holder: &Holder,
        fault: Option<Fault>,
    ) -> Result<Option<Value>> {
        let (params, hosts) = params(name, holder);
        let elsewhere = ["elsewhere.example".to_owned()];
        let hosts = if fault == Some(Fault::WrongHost) {
            &elsewhere
        } else {
            hosts
        };
        let validity = match fault {
            Some(Fault::Expired) => span(-2, -1),
            Some(Fault::NotYetValid) => span(1, 2),
            _ => now_span(),
        };
        let good = self.issue(params, hosts, validity)?;
        let mut files = BTreeMap::from([
            (CA, good.ca),
            (CERTIFICATE, good.certificate),
            (KEY, good.key),
        ]);
        match fault {
            Some(Fault::Missing) => return Ok(None),
            Some(Fault::WithoutKey) => {
                files.remove(KEY);
            }
            Some(Fault::Empty) => {
                files.insert(CERTIFICATE, String::new());
            }
            Some(Fault::NotPem) => {
                files.insert(CERTIFICATE, "junk".to_owned());
            }
            Some(Fault::KeyOfAnother) => {
                files.insert(KEY, KeyPair::generate()?.serialize_pem());
            }
            Some(Fault::WrongCa) => {
                files.insert(CA, Authority::new("a stranger")?.issuer.pem());
            }
            Some(Fault::ExpiredCa) => {
                files.insert(CA, self.lived(span(-2, -1))?);
            }
            Some(Fault::TooLarge) => {
                let file = files.entry(CERTIFICATE).or_default();
                // What stands outside of PEM's sections is no part of it.
                file.push_str(&"x".repeat(LARGE.saturating_sub(file.len())));
            }
            Some(Fault::Expired | Fault::NotYetValid | Fault::WrongHost) | None => {}
        }
        Ok(Some(secret(name, files)))
    }
}

/// Hours before or after now.
#[expect(
    clippy::disallowed_methods,
    reason = "a certificate is valid by the clock of this machine"
)]
fn span(start: i32, end: i32) -> Span {
    let now = SystemTime::now();
    let at = |hours: i32| {
        let distance = HOUR * hours.unsigned_abs();
        if hours < 0 {
            now - distance
        } else {
            now + distance
        }
    };
    (at(start), at(end))
}

/// Long enough for any test.
fn now_span() -> Span {
    span(-1, 24)
}

fn params<'a>(name: &str, holder: &'a Holder) -> (CertificateParams, &'a [String]) {
    match holder {
        Holder::Authority => (authority(name), &[]),
        Holder::Router(hosts) => (named(name), hosts),
    }
}

fn secret(name: &str, files: impl IntoIterator<Item = (&'static str, String)>) -> Value {
    let data: BTreeMap<_, _> = files
        .into_iter()
        .map(|(file, content)| (file, STANDARD.encode(content)))
        .collect();
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "data": data,
    })
}

fn named(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.use_authority_key_identifier_extension = true;
    params
}

fn authority(name: &str) -> CertificateParams {
    let mut params = named(name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    params
}
