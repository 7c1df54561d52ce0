//! Do credentials change while links stay up?

use crate::bed::{eventually, never};
use crate::client;
use crate::pki::Authority;
use crate::site::{Sites, is_up};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

#[test]
fn a_rotation_of_a_connector_opens_new_connections_and_retires_the_oldest() {
    let mut sites = Sites::linked();
    let router = sites.east.router.management.clone();
    let first = client::dialled(&router, sites.port);
    assert_eq!(first.values().collect::<Vec<_>>(), ["1"]);
    let since = sites.east.api.report().links["west"].since.clone();

    sites.rotate_east();
    eventually("both sets are open", || {
        client::dialled(&router, sites.port).len() == 2
    });
    let second = client::dialled(&router, sites.port);
    assert!(
        first
            .keys()
            .all(|connection| second.contains_key(connection)),
        "{first:?} {second:?}"
    );
    assert!(second.values().any(|ordinal| ordinal == "2"), "{second:?}");

    sites.rotate_east();
    eventually("the oldest set is closed", || {
        let ordinals: Vec<String> = client::dialled(&router, sites.port).into_values().collect();
        ordinals.contains(&"3".to_owned()) && !ordinals.contains(&"1".to_owned())
    });
    let profile = client::find(&router, "sslProfile", "west-profile").unwrap();
    assert_eq!(profile["ordinal"], "3");
    assert_eq!(profile["oldestValidOrdinal"], "2");
    let link = &sites.east.api.report().links["west"];
    assert!(
        link.up && link.since == since,
        "the link was lost: {link:?}"
    );
    assert_eq!(sites.east.api.report().router.exits, 0);
}

#[test]
fn a_rotation_of_a_listener_closes_nothing() {
    let mut sites = Sites::linked();
    let (west, east) = (
        sites.west.router.management.clone(),
        sites.east.router.management.clone(),
    );
    let before = client::dialled(&east, sites.port);

    sites.rotate_west();
    let profile = client::find(&west, "sslProfile", "skupper-site-server").unwrap();
    assert_eq!(profile["ordinal"], "2");
    assert_ne!(
        profile.get("oldestValidOrdinal").map(String::as_str),
        Some("1")
    );
    never("a connection was closed", Duration::from_secs(1), || {
        client::dialled(&east, sites.port) != before
    });
}

#[test]
fn a_version_that_is_bad_leaves_the_old_one_in_force_whole() {
    let mut sites = Sites::linked();
    let router = sites.east.router.management.clone();
    let good = sites.east.folder.version("west-profile");
    let before = (
        client::dialled(&router, sites.port),
        client::find(&router, "sslProfile", "west-profile"),
    );

    // The key of another certificate.
    let mut bad = sites.authority.issue("east");
    bad.key = sites.authority.issue("east").key;
    let revision = sites.east.folder.credential("west-profile", &bad).swap();
    let report = sites
        .east
        .reported("the bad version is told", &revision, |report| {
            !report.refused.is_empty()
        });
    assert_eq!(report.refused.len(), 1);
    assert_eq!(report.refused[0].entity, "sslProfile/west-profile");
    assert_eq!(report.refused[0].reason, "CredentialBad");
    assert_eq!(
        report.refused[0].message,
        "tls.key is not the key of the certificate in tls.crt"
    );
    assert_eq!(report.credentials["west-profile"], good);
    assert!(is_up(&report));
    let after = (
        client::dialled(&router, sites.port),
        client::find(&router, "sslProfile", "west-profile"),
    );
    assert_eq!(before, after, "nothing was sent");

    sites.rotate_east();
}

#[test]
fn a_version_that_only_the_router_refuses_is_undone() {
    let mut sites = Sites::linked();
    let router = sites.east.router.management.clone();
    let good = sites.east.folder.version("west-profile");
    // The files are as good as any, but the protocol does not exist.
    let renewed = sites.authority.issue("east");
    let revision = sites
        .east
        .folder
        .credential("west-profile", &renewed)
        .entity(
            "sslProfile",
            &serde_json::json!({ "name": "west-profile", "protocols": "TLSv9" }),
        )
        .swap();
    let report = sites
        .east
        .reported("the refusal is told", &revision, |report| {
            !report.refused.is_empty()
        });
    assert_eq!(report.refused[0].entity, "sslProfile/west-profile");
    assert_eq!(report.refused[0].reason, "RouterRefused");
    assert!(
        report.refused[0].message.contains("TLSv9"),
        "{:?}",
        report.refused
    );
    assert_eq!(report.credentials["west-profile"], good);
    assert!(is_up(&report));

    let revision = sites.east.folder.without_entity("west-profile").swap();
    let version = sites.east.folder.version("west-profile");
    sites.east.reported("it is taken now", &revision, |report| {
        report.credentials["west-profile"] == version
    });
    let profile = client::find(&router, "sslProfile", "west-profile").unwrap();
    assert!(profile["certFile"].contains(&version), "{profile:?}");
}

#[test]
fn files_on_disk_are_private_and_old_versions_go_when_nothing_needs_them() {
    let mut sites = Sites::linked();
    let versions = |sites: &Sites| {
        let folder = fs::read_dir(sites.east.certs.join("west-profile")).unwrap();
        let folders = folder
            .map(Result::unwrap)
            .filter(|entry| entry.path().is_dir());
        folders
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect::<Vec<_>>()
    };
    let first = sites.east.folder.version("west-profile");
    assert_eq!(versions(&sites), [first.as_str()]);
    let folder = sites.east.certs.join("west-profile").join(&first);
    assert_eq!(
        fs::metadata(&folder).unwrap().permissions().mode() & 0o777,
        0o700
    );
    for file in ["ca.crt", "tls.crt", "tls.key"] {
        assert_eq!(
            fs::metadata(folder.join(file))
                .unwrap()
                .permissions()
                .mode()
                & 0o777,
            0o400
        );
    }
    sites.rotate_east();
    let second = sites.east.folder.version("west-profile");
    eventually("the old version is gone", || {
        versions(&sites) == [second.as_str()]
    });
    let current =
        fs::read_to_string(sites.east.certs.join("west-profile").join("current")).unwrap();
    assert_eq!(current, second);

    let revision = sites.unlink();
    sites
        .east
        .reported("nothing is in force", &revision, |report| {
            report.credentials.is_empty()
        });
    eventually("nothing is on disk", || {
        fs::read_dir(&sites.east.certs).unwrap().count() == 0
    });
    assert!(client::find(&sites.east.router.management, "sslProfile", "west-profile").is_none());
}

#[test]
fn a_ca_is_replaced_by_way_of_a_bundle_while_the_link_is_up() {
    let mut sites = Sites::linked();
    let since = sites.east.api.report().links["west"].since.clone();
    let next = Authority::new("next-ca");
    let bundle = |sites: &Sites, name: &str, of: &Authority| {
        let mut credential = of.issue(name);
        credential.ca = format!("{}{}", sites.authority.issue(name).ca, next.issue(name).ca);
        credential
    };
    for of in [0, 1] {
        let of = |sites: &Sites, name: &str| match of {
            0 => bundle(sites, name, &sites.authority),
            _ => bundle(sites, name, &next),
        };
        let credential = of(&sites, "west");
        let revision = sites
            .west
            .folder
            .credential("skupper-site-server", &credential)
            .swap();
        sites
            .west
            .reported("west has it", &revision, |report| report.refused.is_empty());
        let credential = of(&sites, "east");
        let revision = sites
            .east
            .folder
            .credential("west-profile", &credential)
            .swap();
        sites
            .east
            .reported("east has it", &revision, |report| report.refused.is_empty());
    }
    let link = &sites.east.api.report().links["west"];
    assert!(
        link.up && link.since == since,
        "the link was lost: {link:?}"
    );
}

#[test]
fn a_hundred_rotations_without_a_pause_end_with_the_last() {
    let mut sites = Sites::linked();
    let since = sites.east.api.report().links["west"].since.clone();
    let versions: Vec<_> = (0..4).map(|_| sites.authority.issue("east")).collect();
    let mut revision = String::new();
    for round in 0..100 {
        let credential = &versions[round % versions.len()];
        revision = sites
            .east
            .folder
            .credential("west-profile", credential)
            .swap();
    }
    let version = sites.east.folder.version("west-profile");
    let report = sites
        .east
        .reported("the last version is in force", &revision, |report| {
            report.credentials.get("west-profile") == Some(&version)
        });
    assert_eq!(report.refused, []);
    let link = &report.links["west"];
    assert!(
        link.up && link.since == since,
        "the link was lost: {link:?}"
    );
    assert_eq!((report.router.starts, report.router.exits), (1, 0));
    let router = sites.east.router.management.clone();
    eventually("the older sets are closed", || {
        client::dialled(&router, sites.port).len() <= 2
    });
}
