//! What a store does between the watch and the doorbell.

use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::controller::ReconcileRequest;
use serde_json::json;
use spanwire_plan::facts::{CA_FILE, CERTIFICATE_FILE, KEY_FILE, SecretFacts};

use tokio::time::sleep;

use super::bodies::{Body, offer_credentials};
use super::*;
use crate::controllers::KINDS;
use crate::facts::secret_facts;
use crate::mock::cluster::{authority, signed};
use crate::mock::{ApiServer, Fault};
use crate::pki::Credential;
use crate::telemetry::Health;

type Rung = kube::core::PartialObjectMeta<Certificate>;

fn stores() -> (
    Stores,
    futures::stream::BoxStream<'static, ReconcileRequest<Rung>>,
) {
    let (bells, mut queues) = Bells::new(&KINDS);
    let queue = queues.remove(&ObjectKind::Certificate).unwrap();
    (Stores::new("home", bells), queue.requests::<Certificate>())
}

fn certificate(name: &str, version: &str) -> Seen<Certificate> {
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "a", "uid": name, "resourceVersion": version},
        "spec": {"ca": "ca", "subject": name},
    }))
    .unwrap()
}

fn metadata(name: &str, version: &str) -> ObjectMeta {
    serde_json::from_value(json!({"name": name, "namespace": "a", "resourceVersion": version}))
        .unwrap()
}

fn facts(name: &str, version: &str) -> Facts {
    Facts::Secret(SecretFacts {
        metadata: metadata(name, version),
        ..SecretFacts::default()
    })
}

/// Names that the certificates' doorbell has rung for, without waiting for more.
fn rung(queue: &mut futures::stream::BoxStream<'static, ReconcileRequest<Rung>>) -> Vec<String> {
    use futures::{FutureExt, StreamExt};
    let mut names = Vec::new();
    while let Some(Some(request)) = queue.next().now_or_never() {
        names.push(request.obj_ref.name);
    }
    names
}

fn read(name: &str, version: &str) -> Body {
    Body {
        namespace: "a".to_owned(),
        kind: ObjectKind::Secret,
        name: name.to_owned(),
        revision: version.to_owned(),
    }
}

#[test]
fn the_store_knows_before_the_doorbell_rings() {
    let (stores, mut queue) = stores();
    stores.keep(certificate("leaf", "1"));
    assert!(stores.world("a").certificates.get("leaf").is_some());
    assert!(rung(&mut queue).contains(&"leaf".to_owned()));
}

#[test]
fn an_object_that_is_known_at_this_revision_is_no_news() {
    let (stores, mut queue) = stores();
    stores.keep(certificate("leaf", "1"));
    rung(&mut queue);
    stores.keep(certificate("leaf", "1"));
    assert_eq!(rung(&mut queue), Vec::<String>::new());
}

#[test]
fn a_deletion_wakes_those_who_depended_on_it() {
    let (stores, mut queue) = stores();
    stores.keep(certificate("ca", "1"));
    stores.keep(certificate("leaf", "2"));
    rung(&mut queue);
    stores.forget::<Seen<Certificate>>("a", "ca");
    assert!(stores.world("a").certificates.get("ca").is_none());
    assert!(rung(&mut queue).contains(&"leaf".to_owned()));
}

#[test]
fn no_pass_while_a_named_body_is_being_read() {
    let (stores, mut queue) = stores();
    stores.see_body(ObjectKind::Secret, &metadata("ca", "7"));
    stores.keep(certificate("leaf", "1"));
    rung(&mut queue);
    assert!(
        stores
            .world_for(ObjectKind::Certificate, "a", "leaf")
            .is_none()
    );
    stores.learn(&read("ca", "7"), facts("ca", "7"));
    assert!(stores.world("a").secrets.get("ca").is_some());
    assert!(rung(&mut queue).contains(&"leaf".to_owned()));
    assert!(
        stores
            .world_for(ObjectKind::Certificate, "a", "leaf")
            .is_some()
    );
}

#[test]
fn a_body_that_moved_on_while_it_was_read_is_read_again() {
    let (stores, _queue) = stores();
    stores.see_body(ObjectKind::Secret, &metadata("ca", "7"));
    stores.keep(certificate("leaf", "1"));
    stores.see_body(ObjectKind::Secret, &metadata("ca", "9"));
    stores.learn(&read("ca", "7"), facts("ca", "7"));
    assert!(
        stores
            .world_for(ObjectKind::Certificate, "a", "leaf")
            .is_none()
    );
    stores.learn(&read("ca", "9"), facts("ca", "9"));
    assert!(
        stores
            .world_for(ObjectKind::Certificate, "a", "leaf")
            .is_some()
    );
}

/// One that is ready at once would answer redemptions without a certificate to serve with.
#[tokio::test(start_paused = true)]
async fn ready_once_each_body_that_is_named_has_been_asked_for() {
    let server = ApiServer::new();
    let path = |name: &str| format!("/api/v1/namespaces/a/secrets/{name}");
    server.put(&path("ca"), json!({"metadata": {"name": "ca"}}));
    let forbidden = path("leaf");
    server.fault(move |call| {
        if call.path == forbidden {
            Fault::Refuse(403)
        } else {
            Fault::None
        }
    });
    let health = Health::new();
    let (stores, _queue) = stores();
    let stores = Arc::new(stores);
    stores.hold(health.hold("reads"));
    stores.see_body(ObjectKind::Secret, &metadata("ca", "7"));
    stores.see_body(ObjectKind::Secret, &metadata("leaf", "8"));
    stores.keep(certificate("leaf", "1"));
    stores.let_go();
    assert_eq!(health.readiness(), Err("reads".to_owned()));
    let reader = Reader {
        client: server.client(),
        stores: stores.clone(),
    };
    tokio::select! {
        () = reader.run() => {}
        () = sleep(Duration::from_millis(1)) => {}
    }
    assert_eq!(health.readiness(), Ok(()));
    assert!(stores.world("a").secrets.get("ca").is_some());
    assert!(stores.world("a").secrets.get("leaf").is_none());
}

#[test]
fn a_secret_that_nobody_names_is_not_read() {
    let (stores, _queue) = stores();
    stores.keep(certificate("leaf", "1"));
    stores.see_body(ObjectKind::Secret, &metadata("somebody-elses", "7"));
    assert!(
        stores
            .world_for(ObjectKind::Certificate, "a", "leaf")
            .is_some()
    );
    assert!(stores.world("a").secrets.is_empty());
}

#[test]
fn codes_stay_outside_the_world() {
    let (stores, _queue) = stores();
    let mut grant: Seen<AccessGrant> = serde_json::from_value(json!({
        "metadata": {"name": "grant", "namespace": "a", "uid": "1", "resourceVersion": "1"},
        "spec": {"code": "chosen"}, "status": {"code": "minted"},
    }))
    .unwrap();
    stores.codes.take_from_grant(&mut grant);
    stores.keep(grant);
    let printed = serde_json::to_string(&*stores.world("a")).unwrap();
    assert!(
        !printed.contains("chosen") && !printed.contains("minted"),
        "{printed}"
    );
    assert!(printed.contains("present"));
    assert!(bool::from(stores.codes.digest("1").1));
}

#[test]
fn nothing_is_kept_of_a_namespace_that_is_gone() {
    let (stores, _queue) = stores();
    stores.see_body(ObjectKind::Secret, &metadata("ca", "7"));
    stores.keep(certificate("leaf", "1"));
    stores.forget::<Seen<Certificate>>("a", "leaf");
    assert_eq!(stores.namespaces(), ["a"]);
    stores.lose_body(ObjectKind::Secret, "a", "ca");
    assert_eq!(stores.namespaces(), Vec::<String>::new());
}

/// Whoever has the CA that a grant tells can connect, whatever somebody puts into the Secret.
#[test]
fn the_grant_server_serves_what_the_ca_it_tells_vouches_for() {
    let (stores, _queue) = stores();
    stores.keep(certificate("leaf", "1"));
    let offered = stores.grant_credentials();
    let [ours, theirs] = ["ours", "theirs"].map(authority);
    let offer = |ca: &Credential, by: &Credential| {
        let pair = signed(by, &["grants.example"]);
        let files = [
            (CA_FILE, &ca.certificate),
            (CERTIFICATE_FILE, &pair.certificate),
            (KEY_FILE, &*pair.key),
        ];
        let data = files.map(|(name, text)| (name.to_owned(), ByteString(text.clone().into())));
        let secret = Secret {
            data: Some(data.into()),
            ..Secret::default()
        };
        offer_credentials(&stores, &secret, &secret_facts(&secret));
        let told = stores.world("a").grant_server.ca.clone();
        let served = offered
            .borrow()
            .as_ref()
            .map(|pair| pair.certificate.clone());
        (told, served.as_ref() == Some(&pair.certificate))
    };
    let of = |ca: &Credential| Some(ca.certificate.clone());
    assert_eq!(offer(&ours, &theirs), (None, false));
    assert_eq!(offer(&ours, &ours), (of(&ours), true));
    assert_eq!(offer(&ours, &theirs), (of(&ours), false));
    assert_eq!(offer(&theirs, &ours), (of(&ours), false));
    assert_eq!(offer(&theirs, &theirs), (of(&theirs), true));
}
