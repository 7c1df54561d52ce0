//! Does a redemption begin when it may, and only then?

use std::collections::BTreeMap;

use serde_json::json;
use spanwire_plan::plan::{Child, ObjectKind};

use super::*;
use crate::mock::{ApiServer, Fault};

pub(crate) fn redeem(token: &str) -> Redeem {
    Redeem {
        namespace: "a".to_owned(),
        token: token.to_owned(),
        uid: format!("uid of {token}"),
        generation: 1,
        subject: "site".to_owned(),
        secret: Child {
            kind: ObjectKind::Secret,
            object: json!({
                "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
                "metadata": {"name": token, "namespace": "a"},
            }),
            data: BTreeMap::new(),
            unwanted: Vec::new(),
        },
    }
}

fn pool(server: &ApiServer, leading: &Leading) -> Pool {
    let metrics = Arc::new(Metrics::new("0"));
    let (clock, policy) = (Clock::default(), Policy::default());
    Pool::new(
        server.client(),
        clock,
        policy,
        leading.clone(),
        metrics,
        Arc::new(|_, _| {}),
        Dying::default(),
    )
}

#[tokio::test(start_paused = true)]
async fn a_redemption_that_waits_is_not_begun_after_the_lease_is_lost() {
    let server = ApiServer::new();
    server.fault(|_| Fault::Hang);
    let (until, leading) = Leading::for_test();
    let pool = pool(&server, &leading);
    for index in 0..=NAMESPACE_PLACES {
        pool.submit(redeem(&format!("t{index}")));
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    until.send_replace(None);
    pool.drain().await;
    assert_eq!(server.count("GET", ""), NAMESPACE_PLACES);
}

#[tokio::test(start_paused = true)]
async fn a_namespace_whose_tokens_all_wait_holds_up_no_other() {
    let server = ApiServer::new();
    server.fault(|_| Fault::Hang);
    let (_until, leading) = Leading::for_test();
    let pool = pool(&server, &leading);
    for index in 0..PLACES {
        pool.submit(redeem(&format!("t{index}")));
    }
    pool.submit(Redeem {
        namespace: "b".to_owned(),
        ..redeem("other")
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(server.count("GET", "/accesstokens/other"), 1);
    assert_eq!(server.count("GET", ""), NAMESPACE_PLACES + 1);
}

#[tokio::test]
async fn what_was_not_begun_answers_nothing() {
    let (_until, leading) = Leading::for_test();
    let shared = pool(&ApiServer::new(), &leading).0;
    let redeem = redeem("t");
    let submit = |redeem: &Redeem| {
        let mut state = shared.state();
        let running = &mut state.running;
        running.insert(redeem.uid.clone(), Some(redeem.clone()));
    };
    submit(&redeem);
    assert_eq!(shared.later(&redeem, false).as_ref(), Some(&redeem));
    submit(&redeem);
    assert_eq!(shared.later(&redeem, true), None);
    assert!(shared.state().running.is_empty());
}

/// Its code would be spent on links that cannot be made.
#[tokio::test]
async fn a_token_whose_links_could_not_be_named_is_refused_before_it_is_sent() {
    let (_until, leading) = Leading::for_test();
    for (length, is_refused) in [(251, false), (252, true), (253, true)] {
        let (server, name) = (ApiServer::new(), "t".repeat(length));
        let path = format!("/apis/skupper.io/v2alpha1/namespaces/a/accesstokens/{name}");
        server.put(
            &path,
            json!({
                "apiVersion": "skupper.io/v2alpha1", "kind": "AccessToken",
                "metadata": {"name": name, "namespace": "a", "uid": format!("uid of {name}"), "generation": 1},
                "spec": {"url": "https://127.0.0.1:1/u", "code": "c", "ca": "junk"},
            }),
        );
        let outcome = pool(&server, &leading).0.outcome(&redeem(&name)).await;
        let Some(Outcome::Invalid(message)) = outcome else {
            panic!("{outcome:?}")
        };
        assert_eq!(message.contains("251 characters"), is_refused, "{message}");
    }
}
