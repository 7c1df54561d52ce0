//! Does a replica that is cut off, frozen or told to stop leave the work to others in time?

use std::sync::Arc;

use serde_json::{Value, json};
use spanwire_api::Certificate;
use spanwire_plan::{Config, Seen};
use tokio::task::JoinSet;

use super::*;
use crate::controllers::KINDS;
use crate::driver::Shell;
use crate::dying::Dying;
use crate::mock::{ApiServer, Call, Fault};
use crate::publish::Publisher;
use crate::stores::{Bells, Stores};
use crate::telemetry::Metrics;

const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/the-lease";

fn holder(server: &ApiServer) -> String {
    let lease = server.get(PATH).unwrap_or_default();
    lease
        .pointer("/spec/holderIdentity")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

struct Replica {
    changes: watch::Receiver<bool>,
    leading: Leading,
    stop: CancellationToken,
    task: JoinSet<()>,
}

fn replica(server: &ApiServer, identity: &str) -> Replica {
    let lease = Lease::new(
        server.client(),
        Clock::default(),
        "ns",
        "the-lease",
        identity,
    );
    let (changes, leading, stop) = (lease.changes(), lease.leading(), CancellationToken::new());
    let mut task = JoinSet::new();
    task.spawn(lease.run(stop.clone()));
    Replica {
        changes,
        leading,
        stop,
        task,
    }
}

async fn until(replica: &mut Replica, leads: bool, limit: u64) -> Duration {
    let start = Instant::now();
    let wait = replica.changes.wait_for(|told| *told == leads);
    timeout(Duration::from_secs(limit), wait)
        .await
        .expect("in time")
        .unwrap();
    assert_eq!(replica.leading.is_leading(), leads);
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn one_of_two_leads_and_the_other_follows_when_it_stops() {
    let server = ApiServer::new();
    let mut one = replica(&server, "one");
    until(&mut one, true, 1).await;
    let mut other = replica(&server, "other");
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert!(one.leading.is_leading() && !other.leading.is_leading());

    one.stop.cancel();
    one.task.join_next().await;
    assert_eq!(holder(&server), "");
    until(&mut other, true, 4).await;
    assert_eq!(holder(&server), "other");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_dies_is_followed_after_the_lease_is_over() {
    let server = ApiServer::new();
    let mut one = replica(&server, "one");
    until(&mut one, true, 1).await;
    let mut other = replica(&server, "other");
    tokio::time::sleep(Duration::from_secs(5)).await;
    drop(one);
    let waited = until(&mut other, true, 20).await.as_secs();
    assert!((12..=18).contains(&waited), "{waited} s");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_cut_off_stops_at_its_deadline_and_comes_back() {
    for fault in [Fault::Refuse(500), Fault::LoseRequest, Fault::Hang] {
        let server = ApiServer::new();
        let mut one = replica(&server, "one");
        until(&mut one, true, 1).await;
        tokio::time::sleep(Duration::from_mins(1)).await;
        server.fault(move |_| fault);
        let waited = until(&mut one, false, 11).await.as_secs_f64();
        assert!(waited > 7.0, "{waited} s");
        tokio::time::sleep(Duration::from_mins(5)).await;
        assert!(!one.leading.is_leading());
        server.fault(|_| Fault::None);
        until(&mut one, true, 10).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_hiccup_shorter_than_the_deadline_is_nobodys_business() {
    let server = ApiServer::new();
    let mut one = replica(&server, "one");
    until(&mut one, true, 1).await;
    let mut changes = one.changes.clone();
    changes.mark_unchanged();
    for _ in 0..5 {
        server.fault(|_| Fault::Refuse(503));
        tokio::time::sleep(Duration::from_secs(6)).await;
        server.fault(|_| Fault::None);
        tokio::time::sleep(Duration::from_secs(6)).await;
    }
    assert!(!changes.has_changed().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_another_has_taken_is_given_up_at_once() {
    let server = ApiServer::new();
    let mut one = replica(&server, "one");
    until(&mut one, true, 1).await;
    let mut lease = server.get(PATH).unwrap();
    lease["spec"]["holderIdentity"] = json!("other");
    server.put(PATH, lease);
    assert!(until(&mut one, false, 4).await.as_secs() <= 3);
    assert_eq!(holder(&server), "other");
}

#[tokio::test(start_paused = true)]
async fn the_leader_asks_once_a_renewal() {
    let server = ApiServer::new();
    let mut one = replica(&server, "one");
    until(&mut one, true, 1).await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert!(server.count("GET", "the-lease") <= 1);
    let requests = server.count("PUT", "the-lease");
    assert!((40..=51).contains(&requests), "{requests}");
}

#[tokio::test(start_paused = true)]
async fn work_is_given_up_when_the_time_is_over() {
    let server = ApiServer::new();
    let mut one = replica(&server, "one");
    let leading = one.leading.clone();
    assert_eq!(leading.within(async { "done" }).await, None);
    until(&mut one, true, 1).await;
    // Renewals are no end of the time.
    let work = tokio::time::sleep(Duration::from_mins(5));
    assert_eq!(leading.within(work).await, Some(()));

    server.fault(|_| Fault::Hang);
    let begun = Instant::now();
    let hung = leading.within(std::future::pending::<()>());
    assert_eq!(timeout(Duration::from_secs(11), hung).await, Ok(None));
    let waited = begun.elapsed().as_secs_f64();
    assert!(waited > 7.0, "{waited} s");
}

#[tokio::test(start_paused = true)]
async fn work_is_given_up_when_the_lease_is_another_s() {
    let (until, leading) = Leading::for_test();
    let loses = async {
        until.send_replace(None);
        tokio::task::yield_now().await;
        panic!("a step too far");
    };
    assert_eq!(leading.within(loses).await, None::<()>);
}

/// One pass over the Certificate of a CA, for a replica that loses the lease where `loses` says so. Gives back how many
/// writes there were.
async fn writes_of_a_pass(loses: fn(&Call) -> bool) -> usize {
    let server = ApiServer::new();
    let (until, leading) = Leading::for_test();
    server.fault(move |call| {
        if loses(call) {
            until.send_replace(None);
        }
        Fault::None
    });
    let (bells, _queues) = Bells::new(&KINDS);
    let stores = Arc::new(Stores::new("home", bells));
    let certificate: Seen<Certificate> = serde_json::from_value(json!({
        "metadata": {"name": "ca", "namespace": "a", "uid": "1", "resourceVersion": "1"},
        "spec": {"ca": "", "subject": "ca", "signing": true},
    }))
    .unwrap();
    stores.keep(certificate);
    let (client, metrics) = (server.client(), Arc::new(Metrics::new("0")));
    let workshop = crate::mock::workshop(
        client.clone(),
        leading.clone(),
        metrics.clone(),
        Dying::default(),
    );
    let publisher = Arc::new(Publisher::new(client, "spanwire", "me", Dying::default()));
    let config = Config::default();
    let clock = Clock::default();
    let shell = Shell::new(stores, workshop, publisher, config, clock, leading, metrics);
    shell.reconcile::<Certificate>("a", "ca").await;
    server.count("POST", "") + server.count("PATCH", "")
}

#[tokio::test]
async fn a_pass_sends_nothing_after_the_lease_is_lost() {
    // A Secret, and the event that tells of it.
    assert_eq!(writes_of_a_pass(|_| false).await, 2);
    assert_eq!(writes_of_a_pass(|call| call.method == "POST").await, 1);
}
