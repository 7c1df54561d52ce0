//! Is everything that a user has written still there after it went through our types?

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fs, path::PathBuf};

use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use spanwire_api::{
    AccessGrant, AccessGrantStatus, AccessToken, AccessTokenSpec, Certificate, CertificateSpec,
    Link, LinkSpec, RouterAccess, RouterAccessSpec, SecuredAccess, SecuredAccessSpec, Site,
    SiteSpec, SiteStatus,
};

#[test]
fn older_spellings_are_kept() {
    keeps::<SiteSpec>(&json!({ "routerMode": "edge", "ha": false, "linkAccess": "none" }));
    keeps::<RouterAccessSpec>(&json!({
        "roles": [{ "name": "inter-router", "port": 55671 }],
        "tlsCredentials": "skupper-site-server",
        "generateTlsCredentials": true,
        "issuer": "skupper-site-ca",
        "options": { "domain": "example.com" },
    }));
    keeps::<SecuredAccessSpec>(&json!({
        "selector": { "app": "router" },
        "ports": [{ "name": "edge", "port": 45671, "targetPort": 45671, "protocol": "TCP" }],
        "options": { "ingressClassName": "nginx" },
    }));
    keeps::<LinkSpec>(&json!({
        "endpoints": [{ "name": "edge", "host": "192.0.2.1", "port": "45671" }],
        "noClientAuth": true,
        "cost": 2,
    }));
}

#[test]
fn what_the_command_line_sends_is_understood() {
    let site = read::<Site>(json!({
        "apiVersion": "skupper.io/v2alpha1",
        "kind": "Site",
        "metadata": { "name": "west", "creationTimestamp": null },
        "spec": { "linkAccess": "default" },
        "status": {},
    }));
    assert_eq!(site.spec.link_access.as_deref(), Some("default"));
    assert_eq!(site.status, Some(SiteStatus::default()));

    let certificate = read::<Certificate>(json!({
        "metadata": { "name": "link-west" },
        "spec": { "ca": "skupper-site-ca", "client": true, "subject": "127.0.0.1,127.0.0.1" },
    }));
    assert_eq!(certificate.spec.subject, "127.0.0.1,127.0.0.1");

    let grant = read::<AccessGrant>(json!({
        "metadata": { "name": "west-c9bb4000" },
        "spec": { "redemptionsAllowed": 2, "expirationWindow": "15m0s" },
    }));
    assert_eq!(grant.spec.redemptions_allowed, Some(2));
}

#[test]
fn an_unknown_field_is_passed_over() {
    let spec = read::<SiteSpec>(json!({ "ha": true, "fromTheFuture": { "a": 1 } }));
    assert_eq!(
        spec,
        SiteSpec {
            ha: Some(true),
            ..SiteSpec::default()
        }
    );
}

#[test]
fn an_empty_spec_is_read_whatever_is_required() {
    read::<SiteSpec>(json!({}));
    read::<LinkSpec>(json!({}));
    read::<RouterAccessSpec>(json!({ "roles": [{}] }));
    read::<SecuredAccessSpec>(json!({ "ports": [{}] }));
    read::<CertificateSpec>(json!({}));
    read::<AccessTokenSpec>(json!({}));
}

#[test]
fn nothing_is_written_that_was_not_set() {
    assert_eq!(
        serde_json::to_value(SiteSpec::default()).unwrap(),
        json!({})
    );
    assert_eq!(
        serde_json::to_value(SiteStatus::default()).unwrap(),
        json!({})
    );
    assert_eq!(
        serde_json::to_value(AccessGrantStatus::default()).unwrap(),
        json!({})
    );
}

#[test]
fn a_code_is_never_printed() {
    let code = "Qk3vR8sWm2Xy7TzLp5Nd9HcB";
    let grant = read::<AccessGrant>(json!({
        "metadata": { "name": "grant" },
        "spec": { "code": code },
        "status": { "code": code, "url": "https://grants.example.com" },
    }));
    let token = read::<AccessToken>(json!({
        "metadata": { "name": "token" },
        "spec": { "code": code, "url": "https://grants.example.com", "ca": "" },
    }));
    let printed = format!("{grant:?} {token:#?}");
    assert!(!printed.contains(code), "{printed}");
    assert!(printed.contains("https://grants.example.com"), "{printed}");
}

#[test]
fn samples_use_only_fields_that_exist() {
    sample::<Site>("site");
    sample::<Link>("link");
    sample::<RouterAccess>("router_access");
    sample::<SecuredAccess>("secured_access");
    sample::<Certificate>("certificate");
    sample::<AccessGrant>("access_grant");
    sample::<AccessToken>("access_token");
}

#[test]
fn broken_samples_say_what_is_expected() {
    let folder = samples().join("broken");
    let mut kinds = Vec::new();
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let (kind, _) = name.split_once('-').unwrap();
        assert!(
            samples().join(format!("{kind}.yaml")).exists(),
            "{name} has no sound twin"
        );
        assert!(
            text.lines().any(|line| line.starts_with("# expect: ")),
            "{name} expects nothing"
        );
        kinds.push(kind.to_owned());
    }
    kinds.sort();
    kinds.dedup();
    assert_eq!(
        kinds.len(),
        spanwire_api::crds().len(),
        "a kind without a broken twin: {kinds:?}"
    );
}

fn samples() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "..", "config", "samples"]
        .iter()
        .collect()
}

fn sample<K: Serialize + DeserializeOwned>(name: &str) {
    let text = fs::read_to_string(samples().join(format!("{name}.yaml"))).unwrap();
    keeps::<K>(&serde_saphyr::from_str(&text).unwrap());
}

fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn keeps<T: Serialize + DeserializeOwned>(value: &Value) {
    let read: T = serde_json::from_value(value.clone()).unwrap();
    assert_eq!(&serde_json::to_value(read).unwrap(), value);
}
