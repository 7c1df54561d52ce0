//! Certificates for tests.

use std::fs;
use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType, date_time_ymd,
};

/// A certificate authority.
pub(crate) struct Ca(CertifiedIssuer<'static, KeyPair>);

/// How a leaf differs from a good one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leaf<'a> {
    Good,
    Expired,
    ForHost(&'a str),
    /// The address as an address, and no name at all.
    ForAddressOnly,
}

impl Ca {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// Writes `ca.crt`, `tls.crt` and `tls.key` into the folder, which is made.
    pub(crate) fn issue(&self, folder: &Path, common_name: &str, leaf: Leaf<'_>) {
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::CommonName, common_name);
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = match leaf {
            Leaf::Expired => date_time_ymd(2021, 1, 1),
            _ => date_time_ymd(2999, 1, 1),
        };
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        params.subject_alt_names = match leaf {
            Leaf::ForHost(host) => vec![dns(host)],
            Leaf::ForAddressOnly => vec![SanType::IpAddress([127, 0, 0, 1].into())],
            _ => vec![dns("localhost"), dns("127.0.0.1")],
        };
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("ca.crt"), self.pem()).unwrap();
        fs::write(folder.join("tls.crt"), certificate.pem()).unwrap();
        fs::write(folder.join("tls.key"), key.serialize_pem()).unwrap();
    }
}

fn dns(name: &str) -> SanType {
    SanType::DnsName(name.to_owned().try_into().unwrap())
}
