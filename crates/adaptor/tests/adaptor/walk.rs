//! Do two sites find each other?

use crate::bed::{Pod, eventually, free_port};
use crate::pki::Authority;
use serde_json::json;

#[test]
fn two_routers_link_with_credentials_that_their_adaptors_laid_out() {
    let authority = Authority::new("site-ca");
    let port = free_port();
    let mut west = Pod::new("west", "interior");
    west.folder
        .credential("skupper-site-server", &authority.issue("west"))
        .entity("listener", json!({
            "name": "skupper-router-inter-router", "role": "inter-router", "host": "127.0.0.1", "port": port,
            "sslProfile": "skupper-site-server", "saslMechanisms": "EXTERNAL", "authenticatePeer": true
        }))
        .swap();
    let mut east = Pod::new("east", "interior");
    let revision = east.folder
        .credential("west-profile", &authority.issue("east"))
        .entity("connector", json!({
            "name": "west", "role": "inter-router", "host": "127.0.0.1", "port": port.to_string(),
            "cost": 1, "sslProfile": "west-profile"
        }))
        .swap();
    west.start();
    east.start();

    let report = east.reported("the link is up", &revision, |report| {
        report.links["west"].up
    });
    assert_eq!(report.refused, []);
    assert_eq!(report.links["west"].remote.as_deref(), Some("west-0"));
    assert_eq!(report.links["west"].tls.as_deref(), Some("TLSv1.3"));
    assert_eq!((report.router.starts, report.router.exits), (1, 0));
    assert_eq!(
        report.credentials["west-profile"],
        east.folder.version("west-profile")
    );
    eventually("both are ready", || west.is_ready() && east.is_ready());
    assert!(west.is_alive());
    assert!(
        east.metrics().contains("spanwire_adaptor_links_up 1"),
        "{}",
        east.metrics()
    );
    let (paths, keys) = east.api.written();
    assert_eq!(
        paths,
        ["/api/v1/namespaces/west/configmaps/skupper-router-report"]
    );
    assert_eq!(keys, ["pod-1.uid-1"]);
}
