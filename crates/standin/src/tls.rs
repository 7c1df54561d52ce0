//! What does a profile's set of files become, and when is it opened?
//!
//! Files are opened when something that uses the profile is created, and again at each update of
//! the profile; never when the profile is made and never because a file changed.

use std::fs;
use std::sync::{Arc, Weak};

use fe2o3_amqp::types::primitives::Value;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion};
use tokio::sync::watch;

use crate::fault::Fault;
use crate::schema::{Attributes, number};
use crate::verify::DnsOnlyVerifier;

/// A file larger than this is taken for unreadable.
const LARGEST_FILE: u64 = 1 << 20;

/// The attributes of an sslProfile that matter here.
#[derive(Debug, Clone)]
pub(crate) struct Profile {
    name: String,
    ca: Option<String>,
    certificate: Option<String>,
    key: Option<String>,
    protocols: Option<String>,
    ciphers: Option<String>,
    ordinal: u64,
    oldest_valid: u64,
}

/// Who uses a profile, and so what it must hold.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Usage {
    Listener { authenticate_peer: bool },
    Connector { verify_hostname: bool },
    TcpListener { authenticate_peer: bool },
    TcpConnector,
}

/// A profile's files, loaded for one user of it.
#[derive(Clone)]
pub(crate) struct Credentials {
    pub(crate) ordinal: u64,
    pub(crate) oldest_valid: u64,
    pub(crate) config: Config,
}

#[derive(Clone)]
pub(crate) enum Config {
    Server(Arc<ServerConfig>),
    Client(Arc<ClientConfig>),
}

/// One user of a profile: what it holds now, and news of what it will hold next.
pub(crate) struct Slot {
    usage: Usage,
    current: watch::Sender<Credentials>,
}

impl Slot {
    /// Opens the files of `profile` for one more user.
    pub(crate) fn open(profile: &Profile, usage: Usage) -> Result<Arc<Self>, Fault> {
        let current = watch::Sender::new(profile.load(usage)?);
        Ok(Arc::new(Self { usage, current }))
    }

    pub(crate) fn current(&self) -> Credentials {
        self.current.borrow().clone()
    }

    /// Ends when the slot is gone: then the last credentials stay.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Credentials> {
        self.current.subscribe()
    }
}

/// The living users of one profile.
///
/// They do not survive its deletion: who used it then keeps what it has, for ever.
#[derive(Default)]
pub(crate) struct Users(Vec<Weak<Slot>>);

impl Users {
    pub(crate) fn add(&mut self, slot: &Arc<Slot>) {
        self.0.push(Arc::downgrade(slot));
    }

    /// Loads the files anew for each user in turn; the first fault ends it.
    pub(crate) fn reload(&mut self, profile: &Profile) -> Result<(), Fault> {
        self.0.retain(|slot| slot.strong_count() > 0);
        for slot in self.0.iter().filter_map(Weak::upgrade) {
            slot.current.send_replace(profile.load(slot.usage)?);
        }
        Ok(())
    }
}

impl Profile {
    /// Reads the attributes; of their values only the ordinals are checked here.
    pub(crate) fn parse(attributes: &Attributes) -> Result<Self, Fault> {
        let text = |name: &str| match attributes.get(name) {
            Some(Value::String(text)) => Some(text.clone()),
            _ => None,
        };
        let name = text("name").unwrap_or_default();
        let ordinal = |attribute: &str| {
            u64::try_from(attributes.get(attribute).and_then(number).unwrap_or(0)).map_err(|_| {
                Fault::configuration(format_args!(
                    "Negative ordinal field values are invalid (sslProfile '{name}')"
                ))
            })
        };
        let (ordinal, oldest_valid) = (ordinal("ordinal")?, ordinal("oldestValidOrdinal")?);
        if ordinal < oldest_valid {
            return Err(Fault::configuration(format_args!(
                "ordinal must be >= oldestValidOrdinal (sslProfile '{name}')"
            )));
        }
        Ok(Self {
            ca: text("caCertFile"),
            certificate: text("certFile"),
            key: text("privateKeyFile"),
            protocols: text("protocols"),
            ciphers: text("ciphers"),
            ordinal,
            oldest_valid,
            name,
        })
    }

    fn load(&self, usage: Usage) -> Result<Credentials, Fault> {
        self.check_complete(usage)?;
        let roots = self
            .ca
            .as_deref()
            .map(|path| self.roots(path, usage))
            .transpose()?;
        let identity = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => Some(self.identity(certificate, key, usage)?),
            _ => None,
        };
        let versions = self.versions()?;
        self.check_ciphers()?;
        let config = match usage {
            Usage::Listener { authenticate_peer } | Usage::TcpListener { authenticate_peer } => {
                let demanded = roots.filter(|_| authenticate_peer);
                self.server(demanded, identity, &versions, usage)
                    .map(Config::Server)
            }
            Usage::Connector { .. } | Usage::TcpConnector => self
                .client(
                    roots.unwrap_or_else(RootCertStore::empty),
                    identity,
                    &versions,
                    usage,
                )
                .map(Config::Client),
        }?;
        Ok(Credentials {
            ordinal: self.ordinal,
            oldest_valid: self.oldest_valid,
            config,
        })
    }

    /// Which files must be named at all.
    fn check_complete(&self, usage: Usage) -> Result<(), Fault> {
        let name = &self.name;
        let wrong = |text: &str| {
            Err(Fault::configuration(format_args!(
                "{text} (sslProfile: {name})"
            )))
        };
        match usage {
            Usage::Listener { authenticate_peer } | Usage::TcpListener { authenticate_peer } => {
                if self.certificate.is_none() {
                    return wrong("Listener requires a self-identifying certificate");
                }
                if authenticate_peer && self.ca.is_none() {
                    return wrong("Listener requires a CA for peer authentication");
                }
            }
            Usage::Connector { .. } | Usage::TcpConnector => {
                if self.ca.is_none() {
                    return wrong("Connector requires a CA certificate");
                }
            }
        }
        if self.certificate.is_some() && self.key.is_none() {
            return wrong("Missing Private Keyfile");
        }
        Ok(())
    }

    fn ca_fault(&self, path: &str, usage: Usage) -> Fault {
        let name = &self.name;
        match usage {
            Usage::Listener { .. } | Usage::Connector { .. } => Fault::configuration(format_args!(
                "Failed to configure TLS caCertFile '{path}' from sslProfile '{name}'"
            )),
            Usage::TcpListener { .. } | Usage::TcpConnector => Fault::configuration(format_args!(
                "Failed to configure TLS caCertFile {path} for sslProfile '{name}': (-1)"
            )),
        }
    }

    /// The key is never named, whatever is wrong with it.
    fn certificate_fault(&self, usage: Usage) -> Fault {
        let (name, path) = (&self.name, self.certificate.as_deref().unwrap_or_default());
        match usage {
            Usage::Listener { .. } | Usage::Connector { .. } => Fault::configuration(format_args!(
                "Failed to configure TLS certFile '{path}' from sslProfile '{name}'"
            )),
            Usage::TcpListener { .. } | Usage::TcpConnector => Fault::configuration(format_args!(
                "Failed to set TLS certFile '{path}' for sslProfile '{name}': (-1)"
            )),
        }
    }

    fn roots(&self, path: &str, usage: Usage) -> Result<RootCertStore, Fault> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(path).ok_or_else(|| self.ca_fault(path, usage))? {
            roots
                .add(certificate)
                .map_err(|_| self.ca_fault(path, usage))?;
        }
        Ok(roots)
    }

    fn identity(&self, certificate: &str, key: &str, usage: Usage) -> Result<Identity, Fault> {
        let chain = certificates(certificate).ok_or_else(|| self.certificate_fault(usage))?;
        let key = read(key)
            .and_then(|pem| PrivateKeyDer::from_pem_slice(&pem).ok())
            .ok_or_else(|| self.certificate_fault(usage))?;
        Ok(Identity { chain, key })
    }

    fn versions(&self) -> Result<Vec<&'static SupportedProtocolVersion>, Fault> {
        let Some(protocols) = &self.protocols else {
            return Ok(rustls::ALL_VERSIONS.to_vec());
        };
        let mut versions = Vec::new();
        for word in protocols
            .split([' ', ',', ';'])
            .filter(|word| !word.is_empty())
        {
            match word {
                "TLSv1.2" => versions.push(&rustls::version::TLS12),
                "TLSv1.3" => versions.push(&rustls::version::TLS13),
                // Known to the real router; this one has no code for them.
                "TLSv1" | "TLSv1.1" => {}
                _ => {
                    return Err(Fault::configuration(format_args!(
                        "Failed to configure TLS Protocols '{protocols}' for sslProfile '{}')",
                        self.name
                    )));
                }
            }
        }
        Ok(versions)
    }

    /// Ciphers are looked at and not obeyed: a list without one plausible name is refused.
    fn check_ciphers(&self) -> Result<(), Fault> {
        const BEGINNINGS: [&str; 9] = [
            "ALL", "DEFAULT", "HIGH", "MEDIUM", "ECDH", "DHE", "AES", "TLS_", "CHACHA20",
        ];
        match &self.ciphers {
            Some(ciphers)
                if !ciphers
                    .split(':')
                    .any(|c| BEGINNINGS.iter().any(|b| c.starts_with(b))) =>
            {
                Err(Fault::configuration(format_args!(
                    "Failed to configure TLS Ciphers '{ciphers}' for sslProfile '{}'. Use openssl ciphers -v <ciphers> to validate",
                    self.name
                )))
            }
            _ => Ok(()),
        }
    }

    /// `demanded`: the CAs of client certificates, where one is demanded.
    fn server(
        &self,
        demanded: Option<RootCertStore>,
        identity: Option<Identity>,
        versions: &[&'static SupportedProtocolVersion],
        usage: Usage,
    ) -> Result<Arc<ServerConfig>, Fault> {
        let identity = identity.ok_or_else(|| self.certificate_fault(usage))?;
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(versions)
            .map_err(|_| self.certificate_fault(usage))?;
        let builder = match demanded {
            Some(roots) => {
                let ca_fault = || self.ca_fault(self.ca.as_deref().unwrap_or_default(), usage);
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
                        .build()
                        .map_err(|_| ca_fault())?;
                builder.with_client_cert_verifier(verifier)
            }
            None => builder.with_no_client_auth(),
        };
        let mut config = builder
            .with_single_cert(identity.chain, identity.key)
            .map_err(|_| self.certificate_fault(usage))?;
        // A resumed session with a client certificate is refused by the real router.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }

    fn client(
        &self,
        roots: RootCertStore,
        identity: Option<Identity>,
        versions: &[&'static SupportedProtocolVersion],
        usage: Usage,
    ) -> Result<Arc<ClientConfig>, Fault> {
        let verify_hostname = !matches!(
            usage,
            Usage::Connector {
                verify_hostname: false
            }
        );
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(versions)
            .map_err(|_| self.certificate_fault(usage))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(DnsOnlyVerifier::new(
                roots,
                provider().signature_verification_algorithms,
                verify_hostname,
            )));
        let mut config = match identity {
            Some(identity) => builder
                .with_client_auth_cert(identity.chain, identity.key)
                .map_err(|_| self.certificate_fault(usage))?,
            None => builder.with_no_client_auth(),
        };
        config.resumption = rustls::client::Resumption::disabled();
        Ok(Arc::new(config))
    }
}

struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// The certificates of a PEM file: at least one, or `None`.
fn certificates(path: &str) -> Option<Vec<CertificateDer<'static>>> {
    let pem = read(path)?;
    let found: Vec<_> = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<_, _>>()
        .ok()?;
    (!found.is_empty()).then_some(found)
}

fn read(path: &str) -> Option<Vec<u8>> {
    let size = fs::metadata(path).ok()?.len();
    if size > LARGEST_FILE {
        return None;
    }
    fs::read(path).ok()
}
