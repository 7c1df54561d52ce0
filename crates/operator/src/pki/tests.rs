//! Do peers that know nothing of this crate believe what it makes?

use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::encoding::{AsDer, EcPrivateKeyRfc5915Der};
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1_SIGNING, EcdsaKeyPair,
};
use rcgen::{
    CertifiedIssuer, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519,
    PKCS_RSA_SHA256,
};
use rustls::RootCertStore;
use rustls::client::danger::ServerCertVerifier;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use spanwire_plan::facts::CertificateFacts;

use super::*;
use crate::mock::cluster;

pub(super) use crate::mock::cluster::signer;

pub(super) const NOW: i64 = 1_800_000_000;
pub(super) const YEAR: i64 = 365 * 24 * 3600;

pub(super) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

pub(super) fn order(subject: &str, hosts: &[&str], is_signed: bool) -> Issue {
    Issue {
        server: false,
        not_before: at(NOW - 600),
        not_after: at(NOW + YEAR),
        ..cluster::order(subject, hosts, is_signed)
    }
}

/// What a redeemed token brings that was signed by this CA.
pub(super) fn redeemed(ca: &Credential) -> Credential {
    let issuer = signer(ca).authority().unwrap();
    client_credential("remote", &issuer, at(NOW - 600), at(NOW + YEAR), false).unwrap()
}

pub(super) fn our_ca() -> Credential {
    issue(&order("ca", &[], false), None).unwrap()
}

pub(super) fn facts_of(pem: &str) -> Vec<CertificateFacts> {
    crate::facts::of_certificates(pem)
}

pub(super) fn ders(pem: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .unwrap()
}

fn roots(credential: &Credential) -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for root in ders(&credential.ca) {
        roots.add(root).unwrap();
    }
    Arc::new(roots)
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

fn now() -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(NOW.try_into().unwrap()))
}

/// What a TLS server says to a client that shows the credential.
pub(super) fn as_client(credential: &Credential) -> Result<(), rustls::Error> {
    let verifier =
        rustls::server::WebPkiClientVerifier::builder_with_provider(roots(credential), provider())
            .build()
            .unwrap();
    let chain = ders(&credential.certificate);
    verifier
        .verify_client_cert(&chain[0], &chain[1..], now())
        .map(drop)
}

/// What a TLS client says that dials `host` and meets the credential.
pub(super) fn as_server(credential: &Credential, host: &str) -> Result<(), rustls::Error> {
    let verifier =
        rustls::client::WebPkiServerVerifier::builder_with_provider(roots(credential), provider())
            .build()
            .unwrap();
    let chain = ders(&credential.certificate);
    let name = ServerName::try_from(host).unwrap();
    verifier
        .verify_server_cert(&chain[0], &chain[1..], &name, &[], now())
        .map(drop)
}

#[test]
fn peers_believe_what_our_ca_signs() {
    for rsa in [false, true] {
        let ca = issue(
            &Issue {
                rsa,
                ..order("ca", &[], false)
            },
            None,
        )
        .unwrap();
        let credential = issue(
            &Issue {
                rsa,
                ..order("site", &["a.example"], true)
            },
            Some(&signer(&ca)),
        )
        .unwrap();
        assert_eq!(credential.ca, ca.certificate);
        as_client(&credential).unwrap();
        as_server(&credential, "a.example").unwrap();
        as_server(&credential, "b.example").unwrap_err();
    }
}

#[test]
fn a_ca_of_ours_may_sign_certificates_and_one_bridge() {
    let ca = facts_of(&our_ca().certificate);
    assert!(ca[0].is_ca);
    assert_eq!(ca[0].path_length, Some(1));
    assert_eq!(ca[0].key_id, ca[0].authority_id);
    assert_eq!(
        (ca[0].not_before, ca[0].not_after),
        (at(NOW - 600), at(NOW + YEAR))
    );
}

#[test]
fn a_leaf_says_what_was_ordered_and_no_more() {
    let ca = our_ca();
    let order = Issue {
        server: true,
        ..order(
            "a site",
            &[" A.example ", "10.0.0.1", "2001:DB8::1", "", "*.b.example"],
            true,
        )
    };
    let leaf = &facts_of(&issue(&order, Some(&signer(&ca))).unwrap().certificate)[0];
    assert_eq!(leaf.subject, "a site");
    assert_eq!(leaf.issuer, "ca");
    assert_eq!(
        leaf.ips.iter().map(String::as_str).collect::<Vec<_>>(),
        ["10.0.0.1", "2001:db8::1"]
    );
    assert_eq!(
        leaf.dns.iter().map(String::as_str).collect::<Vec<_>>(),
        [
            "*.b.example",
            "10.0.0.1",
            "2001:DB8::1",
            "2001:db8::1",
            "A.example"
        ]
    );
    assert!(leaf.server && !leaf.client && !leaf.is_ca);
    assert_eq!(leaf.authority_id, facts_of(&ca.certificate)[0].key_id);
}

#[test]
fn neither_usage_means_both() {
    let ca = our_ca();
    for (client, server) in [(false, false), (true, true), (true, false), (false, true)] {
        let order = Issue {
            client,
            server,
            ..order("site", &["a"], true)
        };
        let leaf = &facts_of(&issue(&order, Some(&signer(&ca))).unwrap().certificate)[0];
        assert_eq!(
            (leaf.client, leaf.server),
            (client || !server, server || !client)
        );
    }
}

#[test]
fn an_ip_address_among_the_dns_names_disturbs_no_verifier() {
    let credential = issue(
        &order("site", &["10.0.0.1", "::1", "z.example"], true),
        Some(&signer(&our_ca())),
    )
    .unwrap();
    for host in ["10.0.0.1", "::1", "z.example"] {
        as_server(&credential, host).unwrap();
    }
}

#[test]
fn a_redeemed_credential_only_dials() {
    let ca = our_ca();
    let credential = redeemed(&ca);
    as_client(&credential).unwrap();
    let leaf = &facts_of(&credential.certificate)[0];
    assert!(leaf.client && !leaf.server);
    assert!(leaf.dns.is_empty());
}

#[test]
fn a_leaf_never_outlives_its_ca() {
    let order = Issue {
        not_after: at(NOW + 20 * YEAR),
        ..order("site", &["a"], true)
    };
    let leaf = &facts_of(&issue(&order, Some(&signer(&our_ca()))).unwrap().certificate)[0];
    assert_eq!(leaf.not_after, at(NOW + YEAR));
}

#[test]
fn an_expired_ca_signs_nothing() {
    let late = Issue {
        not_before: at(NOW + 2 * YEAR),
        not_after: at(NOW + 3 * YEAR),
        ..order("site", &["a"], true)
    };
    let refused = issue(&late, Some(&signer(&our_ca())));
    assert!(matches!(refused, Err(MakeCredential::SpanTime { .. })));
}

#[test]
fn a_long_subject_is_cut_to_what_x509_allows() {
    let long = "ä".repeat(100);
    let credential = issue(&order(&long, &["a"], true), Some(&signer(&our_ca()))).unwrap();
    assert_eq!(facts_of(&credential.certificate)[0].subject, "ä".repeat(64));
    as_client(&credential).unwrap();
}

#[test]
fn no_two_serials_are_the_same() {
    let serial = || {
        let certificate = &ders(&our_ca().certificate)[0];
        x509_parser::parse_x509_certificate(certificate)
            .unwrap()
            .1
            .raw_serial()
            .to_vec()
    };
    let (one, other) = (serial(), serial());
    assert!(one.len() >= 14, "{one:?}");
    assert_ne!(one, other);
}

#[test]
fn a_name_that_no_certificate_can_hold_is_refused() {
    let signer = signer(&our_ca());
    for bad in ["a b", "ä", &"a".repeat(254)] {
        let refused = issue(&order("site", &[bad], true), Some(&signer));
        assert!(
            matches!(refused, Err(MakeCredential::WriteHost(_))),
            "{bad}"
        );
    }
    let many: Vec<String> = (0..300).map(|n| format!("host-{n}")).collect();
    let refused = issue(
        &Issue {
            hosts: many,
            ..order("site", &[], true)
        },
        Some(&signer),
    );
    assert!(matches!(refused, Err(MakeCredential::LimitHosts(300))));
}

#[test]
fn an_order_for_one_ca_is_not_filled_by_another_path() {
    let refused = issue(&order("ca", &[], false), Some(&signer(&our_ca())));
    assert!(matches!(refused, Err(MakeCredential::MatchSigner)));
    let refused = issue(&order("site", &[], true), None);
    assert!(matches!(refused, Err(MakeCredential::MatchSigner)));
}

/// A CA as a user might bring it.
pub(super) fn user_ca(key: KeyPair) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new([]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::OrganizationName, "An Enterprise");
    params.distinguished_name.push(DnType::CommonName, "Root");
    params.not_before = date_time(at(NOW - YEAR)).unwrap();
    params.not_after = date_time(at(NOW + YEAR)).unwrap();
    CertifiedIssuer::self_signed(params, key).unwrap()
}

/// The same key in PKCS#1 or SEC1.
fn traditional(pkcs8: &KeyPair) -> Option<Zeroizing<String>> {
    let der = pkcs8.serialized_der();
    if let Ok(key) = aws_lc_rs::signature::RsaKeyPair::from_pkcs8(der) {
        assert!(key.public_modulus_len() >= 256);
        let (_, parsed) = x509_parser::der_parser::parse_der(der).unwrap();
        let inner = parsed.as_sequence().unwrap()[2]
            .as_slice()
            .unwrap()
            .to_vec();
        return Some(pem::section("RSA PRIVATE KEY", &inner));
    }
    for curve in [
        &ECDSA_P256_SHA256_ASN1_SIGNING,
        &ECDSA_P384_SHA384_ASN1_SIGNING,
    ] {
        if let Ok(key) = EcdsaKeyPair::from_pkcs8(curve, der) {
            let sec1: EcPrivateKeyRfc5915Der<'_> = key.private_key().as_der().unwrap();
            return Some(pem::section("EC PRIVATE KEY", sec1.as_ref()));
        }
    }
    None
}

#[test]
fn a_ca_of_any_common_kind_signs() {
    let kinds = [
        &PKCS_ECDSA_P256_SHA256,
        &PKCS_ECDSA_P384_SHA384,
        &PKCS_ED25519,
        &PKCS_RSA_SHA256,
    ];
    for kind in kinds {
        let key = KeyPair::generate_for(kind).unwrap();
        let pkcs8 = pem::section("PRIVATE KEY", key.serialized_der());
        let spellings = [Some(pkcs8), traditional(&key)];
        let ca = user_ca(key);
        for key in spellings.into_iter().flatten() {
            for roots in [ca.pem(), String::new()] {
                let signer = Signer {
                    certificate: ca.pem(),
                    roots,
                    key: key.clone(),
                };
                let credential = issue(&order("site", &["a"], true), Some(&signer)).unwrap();
                as_client(&credential).unwrap();
                as_server(&credential, "a").unwrap();
                assert_eq!(ders(&credential.ca), ders(&ca.pem()));
            }
        }
    }
}

#[test]
fn a_certificate_of_an_intermediate_comes_with_its_chain() {
    let root = user_ca(KeyPair::generate().unwrap());
    let mut params = CertificateParams::new([]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params
        .distinguished_name
        .push(DnType::CommonName, "Intermediate");
    params.not_after = date_time(at(NOW + YEAR)).unwrap();
    let key = KeyPair::generate().unwrap();
    let between = params.signed_by(&key, &root).unwrap();
    let key = pem::section("PRIVATE KEY", key.serialized_der());

    // The root may be in either file, or in neither.
    let shapes = [
        (between.pem(), root.pem(), root.pem()),
        (between.pem() + &root.pem(), String::new(), root.pem()),
        (between.pem(), String::new(), between.pem()),
    ];
    for (certificate, roots, trusted) in shapes {
        let signer = Signer {
            certificate,
            roots,
            key: key.clone(),
        };
        let credential = issue(&order("site", &["a"], true), Some(&signer)).unwrap();
        assert_eq!(ders(&credential.ca), ders(&trusted));
        assert_eq!(ders(&credential.certificate)[1..], ders(&between.pem()));
        as_client(&credential).unwrap();
    }
}

#[test]
fn the_bridge_from_an_old_key_to_a_new_one_is_served_and_is_no_root() {
    let old = user_ca(KeyPair::generate().unwrap());
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new([]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::OrganizationName, "An Enterprise");
    params.distinguished_name.push(DnType::CommonName, "Root");
    params.not_after = date_time(at(NOW + YEAR)).unwrap();
    let bridge = params.signed_by(&key, &old).unwrap();
    let pkcs8 = pem::section("PRIVATE KEY", key.serialized_der());
    let new = user_ca(key);

    let signer = Signer {
        certificate: new.pem() + &bridge.pem(),
        roots: new.pem() + &old.pem(),
        key: pkcs8,
    };
    let mut credential = issue(&order("site", &["a"], true), Some(&signer)).unwrap();
    assert_eq!(ders(&credential.ca), ders(&(new.pem() + &old.pem())));
    assert_eq!(ders(&credential.certificate)[1..], ders(&bridge.pem()));
    for trusted in [new.pem(), old.pem()] {
        credential.ca = trusted;
        as_server(&credential, "a").unwrap();
    }
}

#[test]
fn what_is_no_ca_signs_nothing() {
    let ca = our_ca();
    let leaf = issue(&order("site", &["a"], true), Some(&signer(&ca))).unwrap();
    let refused = |signer: Signer| match issue(&order("x", &[], true), Some(&signer)) {
        Err(MakeCredential::UseSigner(error)) => error.to_string(),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it signed"),
    };
    assert_eq!(
        refused(signer(&leaf)),
        "tls.crt of the CA is not the certificate of a CA"
    );
    let strange = Signer {
        key: our_ca().key,
        ..signer(&ca)
    };
    assert_eq!(
        refused(strange),
        "the CA cannot sign: tls.key belongs to another certificate than tls.crt"
    );
    let junk = Signer {
        roots: "junk".to_owned(),
        ..signer(&ca)
    };
    assert_eq!(
        refused(junk),
        "the CA is damaged: ca.crt holds no certificate in PEM"
    );
}

#[test]
fn a_signer_is_read_from_the_secret_of_a_ca() {
    let ca = our_ca();
    let mut secret = k8s_openapi::api::core::v1::Secret {
        data: Some(
            [
                ("tls.crt", ca.certificate.as_str()),
                ("tls.key", ca.key.as_str()),
            ]
            .map(|(name, text)| (name.to_owned(), k8s_openapi::ByteString(text.into())))
            .into(),
        ),
        ..Default::default()
    };
    let credential = issue(
        &order("site", &["a"], true),
        Some(&Signer::from_secret(&secret).unwrap()),
    )
    .unwrap();
    as_client(&credential).unwrap();
    secret.data.as_mut().unwrap().remove("tls.key");
    assert!(matches!(
        Signer::from_secret(&secret),
        Err(ReadSigner::FindFile("tls.key"))
    ));
}
