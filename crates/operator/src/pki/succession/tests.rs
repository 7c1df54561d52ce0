//! Can everybody who trusts an old CA, or only the new one, verify everybody else while one follows the other?

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair,
    PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, PKCS_RSA_SHA256,
};
use spanwire_plan::facts::CertificateFacts;
use spanwire_plan::plan::{Issue, Legacy};

use super::*;
use crate::pki::date_time;
use crate::pki::tests::{
    NOW, YEAR, as_client, as_server, at, ders, facts_of, order, our_ca, redeemed, signer, user_ca,
};

mod openssl;

/// The CA that follows this one, as a plan orders it.
pub(super) fn successor(old: &Signer) -> Credential {
    let roots = facts_of(&old.roots).into_iter();
    let chain = facts_of(&old.certificate).into_iter();
    let order = Issue {
        legacy: Legacy {
            bridge: true,
            roots: roots.map(|root| root.fingerprint).collect(),
            chain: chain.map(|own| own.fingerprint).collect(),
            ..Legacy::default()
        },
        ..order("ca", &[], false)
    };
    succeed(&order, None, old).unwrap()
}

pub(super) fn leaf(ca: &Credential) -> Credential {
    issue(&order("site", &["a.example"], true), Some(&signer(ca))).unwrap()
}

/// The same credential, of somebody who trusts these CAs.
pub(super) fn trusting(credential: &Credential, ca: &str) -> Credential {
    Credential {
        ca: ca.to_owned(),
        certificate: credential.certificate.clone(),
        key: credential.key.clone(),
    }
}

/// Whether these roots and this chain satisfy Go's rule: each CA counts for the path length, whoever issued it
/// (`crypto/x509`, `isValid`). The chain is in order, each certificate signed by the next.
fn go_accepts(chain: &[CertificateFacts], root: &CertificateFacts) -> bool {
    let signed = chain.iter().zip(chain.iter().skip(1).chain([root]));
    signed
        .clone()
        .all(|(certificate, issuer)| certificate.authority_id == issuer.key_id)
        && signed.enumerate().all(|(between, (_, issuer))| {
            issuer
                .path_length
                .is_none_or(|longest| between <= longest as usize)
        })
}

#[test]
fn whoever_trusts_either_ca_believes_what_the_new_one_signs() {
    let old = our_ca();
    let new = successor(&signer(&old));
    let facts = facts_of(&new.certificate);
    assert_eq!(facts.len(), 2, "the new CA, and the bridge behind it");
    assert_eq!(
        (facts[0].path_length, facts[1].path_length),
        (Some(1), Some(0))
    );
    assert_eq!(facts[0].key_id, facts[1].key_id);
    assert_eq!(facts[1].authority_id, facts_of(&old.certificate)[0].key_id);
    assert_eq!(
        ders(&new.ca),
        [&ders(&new.certificate)[..1], &ders(&old.certificate)].concat()
    );

    let leaf = leaf(&new);
    assert_eq!(ders(&leaf.ca), ders(&new.ca));
    assert_eq!(ders(&leaf.certificate)[1..], ders(&new.certificate)[1..]);
    let redeemed = redeemed(&new);
    for trusted in [&old.certificate, &new.ca, &facts_pem(&new, 0)] {
        as_server(&trusting(&leaf, trusted), "a.example").unwrap();
        as_client(&trusting(&redeemed, trusted)).unwrap();
    }
    assert!(go_accepts(
        &facts_of(&leaf.certificate),
        &facts_of(&old.certificate)[0]
    ));
    assert!(go_accepts(&facts_of(&leaf.certificate)[..1], &facts[0]));
}

/// One certificate of `tls.crt`.
pub(super) fn facts_pem(credential: &Credential, number: usize) -> String {
    pem::certificate(&ders(&credential.certificate)[number])
}

#[test]
fn without_the_bridge_nobody_who_trusts_the_old_ca_believes_it() {
    let old = our_ca();
    let new = successor(&signer(&old));
    let leaf = leaf(&new);
    let bare = Credential {
        certificate: facts_pem(&leaf, 0),
        ca: old.certificate.clone(),
        key: leaf.key.clone(),
    };
    as_server(&bare, "a.example").unwrap_err();
    assert!(verified(bare).is_err());
}

#[test]
fn a_bridge_ends_with_the_ca_that_vouches() {
    let brief = Issue {
        not_after: at(NOW + 60),
        ..order("ca", &[], false)
    };
    let old = issue(&brief, None).unwrap();
    let facts = facts_of(&successor(&signer(&old)).certificate);
    assert_eq!(
        (facts[0].not_after, facts[1].not_after),
        (at(NOW + YEAR), at(NOW + 60))
    );
}

#[test]
fn a_ca_of_any_common_kind_vouches_for_ours() {
    let kinds = [
        &PKCS_ECDSA_P256_SHA256,
        &PKCS_ECDSA_P384_SHA384,
        &PKCS_ED25519,
        &PKCS_RSA_SHA256,
    ];
    for kind in kinds {
        let key = KeyPair::generate_for(kind).unwrap();
        let pkcs8 = pem::section("PRIVATE KEY", key.serialized_der());
        let ca = user_ca(key);
        for roots in [ca.pem(), String::new()] {
            let old = Signer {
                certificate: ca.pem(),
                roots,
                key: pkcs8.clone(),
            };
            let known = Signer {
                roots: ca.pem(),
                ..signer_of(&old)
            };
            let leaf = leaf(&successor(&known));
            as_server(&trusting(&leaf, &ca.pem()), "a.example").unwrap();
            as_client(&trusting(&leaf, &ca.pem())).unwrap();
        }
    }
}

fn signer_of(ca: &Signer) -> Signer {
    Signer {
        certificate: ca.certificate.clone(),
        roots: ca.roots.clone(),
        key: ca.key.clone(),
    }
}

#[test]
fn an_intermediate_ca_vouches_and_its_chain_is_passed_on() {
    let root = user_ca(KeyPair::generate().unwrap());
    let mut params = CertificateParams::new([]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(1));
    params
        .distinguished_name
        .push(DnType::CommonName, "Intermediate");
    params.not_after = date_time(at(NOW + YEAR)).unwrap();
    let key = KeyPair::generate().unwrap();
    let between = params.signed_by(&key, &root).unwrap();
    let old = Signer {
        certificate: between.pem(),
        roots: root.pem(),
        key: pem::section("PRIVATE KEY", key.serialized_der()),
    };
    let new = successor(&old);
    assert_eq!(ders(&new.certificate)[2..], ders(&between.pem()));
    let leaf = leaf(&new);
    as_server(&trusting(&leaf, &root.pem()), "a.example").unwrap();
    as_server(&trusting(&leaf, &facts_pem(&new, 0)), "a.example").unwrap();
}

#[test]
fn a_second_successor_is_served_with_both_bridges() {
    let first = our_ca();
    let second = successor(&signer(&first));
    let third = successor(&signer(&second));
    let leaf = leaf(&third);
    assert_eq!(facts_of(&leaf.certificate).len(), 3);
    assert_eq!(facts_of(&leaf.ca).len(), 3);
    as_server(&trusting(&leaf, &facts_pem(&second, 0)), "a.example").unwrap();
    as_server(&trusting(&leaf, &facts_pem(&third, 0)), "a.example").unwrap();
    // Who knows only the first needs a verifier that does not count CAs of one name, as the router's does not; Go's
    // counts them.
    let pair = facts::pair(
        Some(first.certificate.as_bytes()),
        leaf.certificate.as_bytes(),
        leaf.key.as_bytes(),
    );
    assert_eq!(pair.chain_error, None);
    assert!(!go_accepts(
        &facts_of(&leaf.certificate),
        &facts_of(&first.certificate)[0]
    ));
}

#[test]
fn an_old_ca_goes_and_key_and_certificate_stay() {
    let old = our_ca();
    let new = successor(&signer(&old));
    let leaf = leaf(&new);
    let own = facts_of(&new.certificate)[0].fingerprint.clone();
    let keep = |roots: Vec<String>, is_signed| Issue {
        legacy: Legacy {
            pair: true,
            roots: roots.into_iter().collect(),
            ..Legacy::default()
        },
        ..order("ca", &[], is_signed)
    };
    let trimmed = succeed(&keep(vec![own], false), None, &signer(&new)).unwrap();
    assert_eq!(ders(&trimmed.certificate), ders(&new.certificate)[..1]);
    assert_eq!(ders(&trimmed.ca), ders(&new.certificate)[..1]);
    assert_eq!(*trimmed.key, *new.key);

    let trimmed_leaf =
        succeed(&keep(vec![], true), Some(&signer(&trimmed)), &signer(&leaf)).unwrap();
    assert_eq!(
        ders(&trimmed_leaf.certificate),
        ders(&leaf.certificate)[..1]
    );
    assert_eq!(ders(&trimmed_leaf.ca), ders(&trimmed.ca));
    assert_eq!(*trimmed_leaf.key, *leaf.key);
    as_server(&trimmed_leaf, "a.example").unwrap();
}

#[test]
fn a_file_of_roots_that_is_missing_comes_back() {
    let ca = our_ca();
    let lost = Signer {
        roots: String::new(),
        ..signer(&ca)
    };
    let order = Issue {
        legacy: Legacy {
            pair: true,
            ..Legacy::default()
        },
        ..order("ca", &[], false)
    };
    let whole = succeed(&order, None, &lost).unwrap();
    assert_eq!(
        (ders(&whole.ca), ders(&whole.certificate)),
        (ders(&ca.ca), ders(&ca.certificate))
    );
}

/// Both CAs are trusted before the first leaf of the new one shows itself.
#[test]
fn a_leaf_of_a_ca_that_was_replaced_trusts_both_first() {
    let (old, new) = (our_ca(), our_ca());
    let before = leaf(&old);
    let fingerprints = |pem: &str| {
        facts_of(pem)
            .into_iter()
            .map(|facts| facts.fingerprint)
            .collect()
    };
    let bundle = Issue {
        legacy: Legacy {
            pair: true,
            bridge: false,
            roots: fingerprints(&before.ca),
            chain: fingerprints(&before.certificate),
        },
        ..order("site", &["a.example"], true)
    };
    let bundled = succeed(&bundle, Some(&signer(&new)), &signer(&before)).unwrap();
    assert_eq!(ders(&bundled.certificate), ders(&before.certificate));
    assert_eq!(*bundled.key, *before.key);

    let fresh = Issue {
        legacy: Legacy {
            roots: fingerprints(&old.ca),
            ..Legacy::default()
        },
        ..order("site", &["a.example"], true)
    };
    let fresh = succeed(&fresh, Some(&signer(&new)), &signer(&bundled)).unwrap();
    let steps = [&before, &bundled, &fresh];
    for pair in steps.windows(2) {
        for (one, other) in [(pair[0], pair[1]), (pair[1], pair[0])] {
            as_server(&trusting(one, &other.ca), "a.example").unwrap();
            as_client(&trusting(one, &other.ca)).unwrap();
        }
    }
    // Which is why there are two steps.
    as_server(&trusting(&fresh, &before.ca), "a.example").unwrap_err();
}

#[test]
fn a_leaf_vouches_for_nobody() {
    let ca = our_ca();
    let order = Issue {
        legacy: Legacy {
            bridge: true,
            ..Legacy::default()
        },
        ..order("ca", &[], false)
    };
    let refused = succeed(&order, None, &signer(&leaf(&ca)));
    assert!(matches!(
        refused,
        Err(MakeCredential::UseSigner(ReadSigner::BeAuthority))
    ));
    let signed = Issue {
        signer: Some(source()),
        ..order
    };
    assert!(matches!(
        succeed(&signed, None, &signer(&ca)),
        Err(MakeCredential::MatchSigner)
    ));
}

fn source() -> spanwire_plan::plan::Source {
    spanwire_plan::plan::Source {
        secret: "ca".to_owned(),
        uid: "1".to_owned(),
        resource_version: "1".to_owned(),
    }
}

/// A CA by hand, with this path length.
pub(super) fn by_hand(subject: &str, path_length: Option<u8>) -> CertifiedIssuer<'static, KeyPair> {
    let params = ca_params(subject, path_length);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

pub(super) fn ca_params(subject: &str, path_length: Option<u8>) -> CertificateParams {
    let mut params = CertificateParams::new([]).unwrap();
    params.is_ca = IsCa::Ca(match path_length {
        Some(longest) => BasicConstraints::Constrained(longest),
        None => BasicConstraints::Unconstrained,
    });
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, subject);
    params.use_authority_key_identifier_extension = true;
    params.not_before = date_time(at(NOW - YEAR)).unwrap();
    params.not_after = date_time(at(NOW + YEAR)).unwrap();
    params
}
