//! Does everything that a decision needs come out, and nothing else?

use k8s_openapi::ByteString;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::FieldsV1;
use rcgen::{CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use spanwire_plan::facts::PairFacts;

use super::*;

fn secret(files: &[(&str, &[u8])]) -> Secret {
    Secret {
        data: Some(
            files
                .iter()
                .map(|(name, bytes)| ((*name).to_owned(), ByteString(bytes.to_vec())))
                .collect(),
        ),
        ..Secret::default()
    }
}

struct Made {
    ca: String,
    certificate: String,
    key: String,
}

fn made(subject: &str) -> Made {
    let mut params = CertificateParams::new([]).unwrap();
    params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Constrained(0));
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, "the ca");
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let mut params =
        CertificateParams::new(["a.example".to_owned(), "10.0.0.1".to_owned()]).unwrap();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, subject);
    let certificate = params.signed_by(&key, &ca).unwrap();
    Made {
        ca: ca.pem(),
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    }
}

fn judged(ca: Option<&str>, certificate: &str, key: &str) -> PairFacts {
    let mut files = vec![
        ("tls.crt", certificate.as_bytes()),
        ("tls.key", key.as_bytes()),
    ];
    files.extend(ca.map(|ca| ("ca.crt", ca.as_bytes())));
    secret_facts(&secret(&files)).pair.unwrap()
}

fn key_error(certificate: &str, key: &str) -> String {
    judged(None, certificate, key).key_error.unwrap_or_default()
}

fn chain_error(ca: Option<&str>, certificate: &str) -> String {
    judged(ca, certificate, "").chain_error.unwrap_or_default()
}

#[test]
fn a_sound_credential_is_told_as_facts() {
    let made = made("a site");
    let facts = secret_facts(&secret(&[
        ("ca.crt", made.ca.as_bytes()),
        ("tls.crt", made.certificate.as_bytes()),
        ("tls.key", made.key.as_bytes()),
    ]));
    assert_eq!(
        facts.pair,
        Some(PairFacts {
            key_error: None,
            chain_error: None,
            signers: [facts.trusted()[0].fingerprint.clone()].into(),
        })
    );
    assert_eq!(facts.trusted()[0].subject, "the ca");
    let certificate = facts.certificate().unwrap();
    assert_eq!(certificate.subject, "a site");
    assert!(certificate.covers("A.example"));
    assert!(certificate.ips.contains("10.0.0.1"));
    assert!(facts.files["tls.key"].certificates.is_empty());
    assert_eq!(facts.files["tls.key"].size, made.key.len());
    assert_eq!(
        facts.files["tls.key"].sha256,
        credentials::digest(made.key.as_bytes())
    );
}

#[test]
fn no_key_is_in_the_facts_wherever_it_hides() {
    let made = made("a site");
    let mut secret = secret(&[
        // Keys where nobody expects one.
        ("ca.crt", (made.key.clone() + &made.ca).as_bytes()),
        ("tls.crt", made.key.as_bytes()),
        ("tls.key", made.key.as_bytes()),
        ("note", made.key.as_bytes()),
        ("profiles.json", made.key.as_bytes()),
    ]);
    let whole = serde_json::to_string(&secret).unwrap();
    secret.metadata.annotations = Some(
        [
            ("tool.example/original", whole),
            (LAST_APPLIED, made.key.clone()),
            ("kept", "yes".into()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into(),
    );
    let facts = secret_facts(&secret);
    let printed = format!("{facts:?}") + &serde_json::to_string(&facts).unwrap();
    for line in made
        .key
        .lines()
        .filter(|line| line.len() > 8 && !line.starts_with('-'))
    {
        assert!(!printed.contains(line));
    }
    assert!(!printed.contains("LS0t") && !printed.contains("PRIVATE"));
    assert!(facts.metadata.annotations.unwrap().contains_key("kept"));
}

#[test]
fn metadata_keeps_names_owners_and_managers_only() {
    let whole = ObjectMeta {
        name: Some("n".to_owned()),
        uid: Some("u".to_owned()),
        resource_version: Some("7".to_owned()),
        generate_name: Some("g".to_owned()),
        finalizers: Some(vec!["f".to_owned()]),
        managed_fields: Some(vec![ManagedFieldsEntry {
            manager: Some("spanwire".to_owned()),
            operation: Some("Update".to_owned()),
            subresource: Some("status".to_owned()),
            fields_v1: Some(FieldsV1(serde_json::json!({"f:data": {}}))),
            ..ManagedFieldsEntry::default()
        }]),
        ..ObjectMeta::default()
    };
    let kept = metadata(&whole);
    assert_eq!(
        (kept.name, kept.uid, kept.resource_version),
        (whole.name, whole.uid, whole.resource_version)
    );
    assert_eq!((kept.generate_name, kept.finalizers), (None, None));
    let manager = &kept.managed_fields.unwrap()[0];
    assert_eq!(manager.manager.as_deref(), Some("spanwire"));
    assert_eq!(manager.operation.as_deref(), Some("Update"));
    assert_eq!(manager.subresource.as_deref(), Some("status"));
    assert_eq!(manager.fields_v1, None);
}

#[test]
fn a_bundle_keeps_its_order() {
    let (one, other) = (made("one"), made("other"));
    let facts = secret_facts(&secret(&[(
        "tls.crt",
        format!("junk\n{}between\n{}", one.certificate, other.certificate).as_bytes(),
    )]));
    let subjects: Vec<&str> = facts.files["tls.crt"]
        .certificates
        .iter()
        .map(|found| found.subject.as_str())
        .collect();
    assert_eq!(subjects, ["one", "other"]);
    assert_eq!(facts.pair, None);
}

#[test]
fn a_file_that_holds_no_certificates_says_so() {
    let made = made("a site");
    let error = |content: &[u8]| {
        secret_facts(&secret(&[("tls.crt", content)])).files["tls.crt"]
            .error
            .clone()
            .unwrap()
    };
    assert_eq!(error(b""), "tls.crt holds no certificate in PEM");
    assert_eq!(
        error(b"\xff\xfe\0junk"),
        "tls.crt holds no certificate in PEM"
    );
    assert_eq!(
        error(made.key.as_bytes()),
        "tls.crt holds no certificate in PEM"
    );
    let half = &made.certificate[..made.certificate.len() / 2];
    assert_eq!(
        error(half.as_bytes()),
        "tls.crt is damaged: it has a PEM section that cannot be read"
    );
    let not_x509 = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    assert_eq!(
        error(not_x509.as_bytes()),
        "certificate 1 of tls.crt is no X.509 certificate"
    );
    assert_eq!(
        error((made.certificate.clone() + not_x509).as_bytes()),
        "certificate 2 of tls.crt is no X.509 certificate"
    );
    assert_eq!(
        error(made.certificate.repeat(300).as_bytes()),
        "tls.crt holds more than 256 certificates"
    );
    assert_eq!(
        error(&vec![b'x'; 600 * 1024]),
        "tls.crt has 614400 bytes, more than the 524288 that are read"
    );
}

#[test]
fn a_key_that_does_not_fit_says_why() {
    let (one, other) = (made("one"), made("other"));
    assert_eq!(key_error(&one.certificate, &one.key), "");
    assert_eq!(
        key_error(&one.certificate, &other.key),
        "tls.key belongs to another certificate than tls.crt"
    );
    assert_eq!(
        key_error(&one.certificate, "junk"),
        "tls.key is not a private key in PEM"
    );
    assert_eq!(
        key_error(&one.certificate, &one.certificate),
        "tls.key is not a private key in PEM"
    );
    assert_eq!(
        key_error(
            &one.certificate,
            &one.key.replace("PRIVATE", "ENCRYPTED PRIVATE")
        ),
        "tls.key is encrypted, and there is nobody to ask for its password"
    );
    assert_eq!(
        key_error("junk", &one.key),
        "tls.crt holds no certificate that tls.key could belong to"
    );
    let not_a_key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    assert_eq!(
        key_error(&one.certificate, not_a_key),
        "tls.key is of a kind that cannot be used: RSA from 2048 bits, P-256, P-384 and Ed25519 can"
    );
    let huge = " ".repeat(70_000) + &one.key;
    assert_eq!(
        key_error(&one.certificate, &huge),
        "tls.key has more than the 65536 bytes that are read"
    );
}

#[test]
fn a_chain_that_leads_nowhere_says_where_it_ends() {
    let (one, other) = (made("one"), made("other"));
    assert_eq!(chain_error(Some(&one.ca), &one.certificate), "");
    assert_eq!(
        chain_error(Some(&(other.ca.clone() + &one.ca)), &one.certificate),
        ""
    );
    assert_eq!(chain_error(None, &one.certificate), "there is no ca.crt");
    assert_eq!(
        chain_error(Some("junk"), &one.certificate),
        "ca.crt holds no certificate in PEM"
    );
    // The same name, another key.
    assert_eq!(
        chain_error(Some(&other.ca), &one.certificate),
        "\"one\" was not signed by the \"the ca\" that is in ca.crt or tls.crt"
    );
    assert_eq!(
        chain_error(Some(&one.certificate), &one.ca),
        "\"the ca\" was issued by \"the ca\", which is neither in tls.crt nor in ca.crt"
    );
    assert_eq!(
        chain_error(Some(&one.certificate), &other.certificate),
        "\"other\" was issued by \"the ca\", which is neither in tls.crt nor in ca.crt"
    );
}

#[test]
fn a_ca_secret_leads_to_itself() {
    let made = made("a site");
    assert_eq!(chain_error(Some(&made.ca), &made.ca), "");
}

/// A CA below `issuer`, or a root.
fn authority(
    name: &str,
    path_length: u8,
    issuer: Option<&CertifiedIssuer<'static, KeyPair>>,
) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new([]).unwrap();
    params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Constrained(path_length));
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, name);
    let key = KeyPair::generate().unwrap();
    match issuer {
        Some(issuer) => CertifiedIssuer::signed_by(params, key, issuer).unwrap(),
        None => CertifiedIssuer::self_signed(params, key).unwrap(),
    }
}

fn below(issuer: &CertifiedIssuer<'static, KeyPair>) -> String {
    let mut params = CertificateParams::new(["a".to_owned()]).unwrap();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, "leaf");
    params
        .signed_by(&KeyPair::generate().unwrap(), issuer)
        .unwrap()
        .pem()
}

#[test]
fn a_chain_goes_through_intermediates_in_any_order() {
    let root = authority("root", 2, None);
    let upper = authority("upper", 1, Some(&root));
    let lower = authority("lower", 0, Some(&upper));
    let leaf = below(&lower);
    let chain = leaf.clone() + &upper.pem() + &lower.pem();
    assert_eq!(chain_error(Some(&root.pem()), &chain), "");
    // With the root in it, as some tools write it.
    assert_eq!(chain_error(Some(&root.pem()), &(chain + &root.pem())), "");
    assert_eq!(
        chain_error(Some(&root.pem()), &(leaf.clone() + &lower.pem())),
        "\"lower\" was issued by \"upper\", which is neither in tls.crt nor in ca.crt"
    );
    assert_eq!(
        chain_error(Some(&root.pem()), &(leaf + &upper.pem())),
        "\"leaf\" was issued by \"lower\", which is neither in tls.crt nor in ca.crt"
    );
}

#[test]
fn an_issuer_that_may_not_issue_ends_a_chain() {
    let root = authority("root", 0, None);
    let upper = authority("upper", 0, Some(&root));
    let chain = below(&upper) + &upper.pem();
    assert_eq!(
        chain_error(Some(&root.pem()), &chain),
        "\"upper\" was issued by \"root\", which may not issue it: it is no CA, or its path length forbids it"
    );
}

#[test]
fn a_bundle_made_to_be_slow_is_given_up() {
    let decoys: String = (0..150).map(|_| authority("root", 0, None).pem()).collect();
    let leaf = below(&authority("root", 0, None));
    assert_eq!(
        chain_error(Some(&decoys), &leaf),
        "the chain of tls.crt is too long or too tangled"
    );
}

fn config_map(name: &str, data: &[(&str, &str)]) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        data: Some(
            data.iter()
                .map(|(key, text)| ((*key).to_owned(), (*text).to_owned()))
                .collect(),
        ),
        ..ConfigMap::default()
    }
}

#[test]
fn a_router_config_map_tells_which_profiles_it_names() {
    let document = r#"[["connector",{"name":"west","host":"a","port":"1","role":"inter-router","sslProfile":"west-profile"}]]"#;
    let facts = config_map_facts(&config_map(
        "skupper-router",
        &[("skrouterd.json", document)],
    ));
    assert_eq!(
        facts.profiles_named,
        Some(BTreeSet::from(["west-profile".to_owned()]))
    );
    assert_eq!(facts.files["skrouterd.json"].size, document.len());
    let junk = config_map_facts(&config_map("skupper-router", &[("skrouterd.json", "[{")]));
    assert_eq!(junk.profiles_named, None);
}

#[test]
fn a_report_that_does_not_parse_costs_no_other() {
    let good = Report {
        revision: "r".to_owned(),
        ..Report::default()
    }
    .to_json();
    let data = [("a.1", good.as_str()), ("b.2", "{")];
    let facts = config_map_facts(&config_map(REPORT_CONFIG_MAP, &data));
    assert_eq!(facts.reports.keys().collect::<Vec<_>>(), ["a.1"]);
    assert!(
        config_map_facts(&config_map("else", &data))
            .reports
            .is_empty()
    );
}

#[test]
fn only_the_config_map_skupper_says_who_controls() {
    let data = [("controller", "ns/name")];
    let controller = |name, data| config_map_facts(&config_map(name, data)).controller;
    assert_eq!(controller("skupper", &data).as_deref(), Some("ns/name"));
    assert_eq!(controller("other", &data), None);
    assert_eq!(
        controller("skupper", &[("controller", &"x".repeat(400))]),
        None
    );
}
