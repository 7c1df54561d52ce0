//! Does one bad thing cost exactly what names it?

use crate::bed::{Pod, eventually, free_port};
use crate::client;
use crate::folder::Folder;
use crate::pki::Credential;
use crate::site::{Sites, connector, is_up, listener};
use spanwire_router::credentials::{Suffix, file_key};
use spanwire_router::report::Report;
use std::net::TcpListener;

/// The reason and message for one entity.
fn refusal(report: &Report, entity: &str) -> (String, String) {
    let refused = report
        .refused
        .iter()
        .find(|refused| refused.entity == entity);
    refused
        .map(|refused| (refused.reason.clone(), refused.message.clone()))
        .unwrap_or_default()
}

#[test]
fn one_bad_credential_costs_one_entity() {
    let mut sites = Sites::linked();
    let good = sites.authority.issue("east");
    let other = sites.authority.issue("east");
    let bad: [(&str, Credential, &str); 6] = [
        (
            "mismatch",
            Credential {
                key: other.key.clone(),
                ..good.clone()
            },
            "tls.key is not the key",
        ),
        (
            "empty",
            Credential {
                crt: String::new(),
                ..good.clone()
            },
            "tls.crt holds no certificate",
        ),
        (
            "garbage",
            Credential {
                ca: "not PEM".to_owned(),
                ..good.clone()
            },
            "ca.crt holds no certificate",
        ),
        (
            "keyless",
            Credential {
                key: "nothing".to_owned(),
                ..good.clone()
            },
            "tls.key holds no private key",
        ),
        (
            "large",
            Credential {
                ca: "x".repeat(1024 * 1024 + 1),
                ..good.clone()
            },
            "ca.crt cannot be read: more than",
        ),
        (
            "broken",
            Credential {
                crt: good.crt.replace("MII", "AAA"),
                ..good.clone()
            },
            "tls.crt holds a certificate that",
        ),
    ];
    let before = client::dialled(&sites.east.router.management, sites.port);
    let folder = &mut sites.east.folder;
    for (name, credential, _) in &bad {
        let profile = format!("{name}-profile");
        folder
            .credential(&profile, credential)
            .entity("connector", &connector(name, sites.port, &profile));
    }
    folder.entity("connector", &connector("lost", sites.port, "lost-profile"));
    let revision = folder.swap();
    let report = sites.east.reported("all are told", &revision, |report| {
        report.refused.len() == 13
    });
    for (name, _, message) in &bad {
        let (reason, text) = refusal(&report, &format!("sslProfile/{name}-profile"));
        assert_eq!(reason, "CredentialBad");
        assert!(text.starts_with(message), "{name}: {text}");
        assert_eq!(
            refusal(&report, &format!("connector/{name}")).0,
            "CredentialMissing"
        );
    }
    assert_eq!(
        refusal(&report, "connector/lost"),
        (
            "CredentialMissing".to_owned(),
            "there is no good version of the credential lost-profile".to_owned()
        )
    );
    assert!(is_up(&report));
    assert_eq!(
        client::dialled(&sites.east.router.management, sites.port),
        before
    );

    for (name, _, _) in &bad {
        sites
            .east
            .folder
            .credential(&format!("{name}-profile"), &good);
    }
    let revision = sites.east.folder.credential("lost-profile", &good).swap();
    let report = sites
        .east
        .reported("all are repaired", &revision, |report| {
            report.refused.is_empty()
        });
    assert_eq!(report.credentials.len(), 8);
    assert_eq!(report.router.exits, 0);
}

#[test]
fn a_credential_whose_file_is_another_than_described_is_not_believed() {
    let mut sites = Sites::unlinked();
    let key = file_key("west-profile", Suffix::Ca);
    let other = sites.authority.issue("east").crt;
    sites.east.folder.files.insert(key.clone(), other.into());
    let revision = sites.east.folder.swap();
    sites.east.start();
    let report = sites
        .east
        .reported("it is told", &revision, |report| !report.refused.is_empty());
    let (reason, message) = refusal(&report, "sslProfile/west-profile");
    assert_eq!(
        (reason.as_str(), message.as_str()),
        (
            "CredentialBad",
            "ca.crt is not the file that profiles.json describes"
        )
    );

    sites.east.folder.files.remove(&key);
    // The same revision: the documents did not change.
    sites.east.folder.swap();
    eventually("the missing file is told", || {
        refusal(&sites.east.api.report(), "sslProfile/west-profile")
            .1
            .contains("is not there")
            || refusal(&sites.east.api.report(), "sslProfile/west-profile")
                .1
                .contains("No such file")
    });
}

#[test]
fn what_the_router_refuses_costs_only_itself_and_is_tried_again() {
    let mut sites = Sites::linked();
    let before = client::dialled(&sites.east.router.management, sites.port);
    let mut odd = connector("odd", sites.port, "west-profile");
    odd["colour"] = "red".into();
    let port = free_port();
    let revision = sites
        .east
        .folder
        .entity("connector", &odd)
        .entity("listener", &listener("more", port, "west-profile"))
        .swap();
    let report = sites
        .east
        .reported("the refusal is told", &revision, |report| {
            report.refused.len() == 1
        });
    let (reason, message) = refusal(&report, "connector/odd");
    assert_eq!(reason, "RouterRefused");
    assert!(
        message.contains("colour") && message.contains("(400)"),
        "{message}"
    );
    assert!(client::find(&sites.east.router.management, "listener", "more").is_some());
    assert_eq!(
        client::dialled(&sites.east.router.management, sites.port),
        before
    );
}

#[test]
fn a_port_that_is_taken_is_told_and_had_when_it_is_free() {
    let mut pod = Pod::new("west", "interior");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let authority = crate::pki::Authority::new("site-ca");
    let revision = pod
        .folder
        .credential("server", &authority.issue("west"))
        .entity("listener", &listener("a", port, "server"))
        .entity("listener", &listener("b", free_port(), "server"))
        .swap();
    pod.start();
    let report = pod.reported("the port is told", &revision, |report| {
        !report.refused.is_empty()
    });
    let (reason, message) = refusal(&report, "listener/a");
    assert_eq!(reason, "PortTaken");
    assert_eq!(
        message,
        format!("port {port} cannot be had: something else listens on it")
    );
    assert!(client::find(&pod.router.management, "listener", "a").is_none());
    assert!(client::find(&pod.router.management, "listener", "b").is_some());
    assert!(report.listeners.keys().eq(["b"]), "{:?}", report.listeners);
    eventually("the pod is ready all the same", || pod.is_ready());
    drop(taken);
    let report = pod.reported("the port is had", &revision, |report| {
        report.refused.is_empty()
    });
    assert_eq!(report.listeners["a"], port);
    assert!(client::find(&pod.router.management, "listener", "a").is_some());
}

#[test]
fn a_configuration_that_cannot_be_understood_changes_nothing() {
    let mut sites = Sites::linked();
    let before = client::dialled(&sites.east.router.management, sites.port);
    let profiles = sites.east.folder.files["profiles.json"].clone();
    let config = sites.east.folder.files["skrouterd.json"].clone();
    let large = vec![b' '; 2 * 1024 * 1024];
    let bad: [(&[u8], &str); 4] = [
        (b"[", "no JSON list"),
        (
            br#"[["httpListener", {"name": "a"}]]"#,
            "unknown type \"httpListener\"",
        ),
        (
            br#"[["sslProfile", {"name": "a", "caCertFile": "/x/../y"}]]"#,
            "is a path with \"..\"",
        ),
        (
            br#"[["connector", {"name": "a", "host": "h", "port": "x"}]]"#,
            "not a number",
        ),
    ];
    for (config, message) in bad {
        let revision = sites.east.folder.swap_documents(&profiles, config);
        let report = sites
            .east
            .reported("the document is told", &revision, |report| {
                refusal(report, "skrouterd.json").1.contains(message)
            });
        assert_eq!(refusal(&report, "skrouterd.json").0, "ConfigBad");
        assert!(is_up(&report));
    }
    sites.east.folder.swap_documents(&profiles, &large);
    eventually("the size is told", || {
        refusal(&sites.east.api.report(), "mount")
            .1
            .contains("skrouterd.json")
    });
    let revision = sites.east.folder.swap_documents(b"{", &config);
    sites
        .east
        .reported("the list is told", &revision, |report| {
            refusal(report, "profiles.json").0 == "ConfigBad"
        });
    sites.east.folder.unlink();
    eventually("the folder is told", || {
        refusal(&sites.east.api.report(), "mount").0 == "MountUnreadable"
    });
    assert_eq!(
        client::dialled(&sites.east.router.management, sites.port),
        before
    );

    let revision = sites.east.folder.swap_documents(&profiles, &config);
    let report = sites
        .east
        .reported("all is well", &revision, |report| report.refused.is_empty());
    assert!(is_up(&report));
    assert_eq!(
        client::dialled(&sites.east.router.management, sites.port),
        before
    );
}

#[test]
fn a_profile_that_the_secret_lacks_for_a_moment_costs_nothing() {
    let mut sites = Sites::linked();
    let before = client::dialled(&sites.east.router.management, sites.port);
    let version = sites.east.folder.version("west-profile");
    let torn = sites.east.folder.without_credential("west-profile").swap();
    let report = sites.east.reported("it was read", &torn, |_| true);
    assert_eq!(report.credentials["west-profile"], version);
    // Nor does a restart of the adaptor in that moment.
    sites.east.kill();
    sites.east.start();
    let report = sites.east.reported("it was read again", &torn, is_up);
    assert_eq!(report.credentials["west-profile"], version);
    assert_eq!(report.refused, []);
    assert_eq!(
        client::dialled(&sites.east.router.management, sites.port),
        before
    );
}

#[test]
fn a_profile_may_be_called_anything() {
    let mut pod = Pod::new("west", "interior");
    let authority = crate::pki::Authority::new("site-ca");
    let names = [
        "..",
        "../../escape",
        "a/b",
        "with space",
        ".hidden",
        "ümlaut",
    ];
    for (index, name) in names.iter().enumerate() {
        pod.folder
            .credential(name, &authority.issue("west"))
            .entity(
                "listener",
                &listener(&format!("l{index}"), free_port(), name),
            );
    }
    let revision = pod.folder.swap();
    pod.start();
    let report = pod.reported("all are there", &revision, |report| {
        report.credentials.len() == names.len()
    });
    assert_eq!(report.refused, []);
    let outside = pod.certs.parent().unwrap().join("escape");
    assert!(!outside.exists());
}

#[test]
fn a_profile_without_key_only_verifies() {
    let mut sites = Sites::linked();
    let folder: &mut Folder = &mut sites.east.folder;
    let ca = sites.authority.issue("east").ca;
    let mut plain = connector("plain", sites.port, "ca-only");
    plain["role"] = "normal".into();
    folder.authority("ca-only", &ca).entity("connector", &plain);
    let revision = folder.swap();
    let report = sites.east.reported("it is there", &revision, |report| {
        report.credentials.len() == 2
    });
    assert_eq!(report.refused, []);
    let router = sites.east.router.management.clone();
    let profile = client::find(&router, "sslProfile", "ca-only").unwrap();
    assert!(
        !profile.contains_key("certFile") && profile.contains_key("caCertFile"),
        "{profile:?}"
    );

    // It gets a certificate, and loses it again: an UPDATE that does not name a file would keep it.
    for (whole, count) in [(true, 1), (false, 0)] {
        if whole {
            let credential = sites.authority.issue("east");
            sites.east.folder.credential("ca-only", &credential);
        } else {
            sites.east.folder.authority("ca-only", &ca);
        }
        let revision = sites.east.folder.swap();
        let version = sites.east.folder.version("ca-only");
        let report = sites.east.reported("it is in force", &revision, |report| {
            report.credentials["ca-only"] == version
        });
        assert_eq!(report.refused, []);
        let profile = client::find(&router, "sslProfile", "ca-only").unwrap();
        assert_eq!(
            profile
                .iter()
                .filter(|(name, _)| *name == "certFile")
                .count(),
            count,
            "{profile:?}"
        );
    }
}
