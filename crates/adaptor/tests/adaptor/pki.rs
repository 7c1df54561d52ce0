//! Which certificates do two sites have?

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair,
    SanType,
};

/// The three files of one credential.
#[derive(Clone)]
pub(crate) struct Credential {
    pub(crate) ca: String,
    pub(crate) crt: String,
    pub(crate) key: String,
}

/// A CA that issues credentials.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        Self {
            issuer: CertifiedIssuer::self_signed(ca_params(name), key).unwrap(),
        }
    }

    /// The key of the CA that follows this one, signed by this one.
    pub(crate) fn cross_certificate(&self, name: &str, next: &Self) -> String {
        let certificate = ca_params(name).signed_by(next.issuer.key(), &self.issuer);
        certificate.unwrap().pem()
    }

    /// A credential for this name, for both ends of a connection, valid for 127.0.0.1.
    pub(crate) fn issue(&self, name: &str) -> Credential {
        let key = KeyPair::generate().unwrap();
        let leaf = params(name, &["127.0.0.1", "localhost"])
            .signed_by(&key, &self.issuer)
            .unwrap();
        Credential {
            ca: self.issuer.pem(),
            crt: leaf.pem(),
            key: key.serialize_pem(),
        }
    }
}

fn ca_params(name: &str) -> CertificateParams {
    let mut params = params(name, &[]);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
}

fn params(name: &str, hosts: &[&str]) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    // The router compares a host with DNS names only, be it an address or not.
    params.subject_alt_names = hosts
        .iter()
        .map(|host| SanType::DnsName((*host).try_into().unwrap()))
        .collect();
    params
}
