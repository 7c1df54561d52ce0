//! Does a token come to its end, whatever the other site and the API server do?

use k8s_openapi::jiff::Timestamp;
use spanwire_plan::plan::Issue;

use super::*;
use crate::mock::cluster::{order, signer};
use crate::pki;

fn not_dialled() -> Outcome {
    Outcome::Invalid("the token's url leads to an address that may not be dialled".to_owned())
}

#[tokio::test]
async fn a_token_is_redeemed_and_its_answer_stored() {
    let cluster = Cluster::new(1);
    let listening = listening(cluster.server()).await;
    let mut west = west(&listening, CODE);
    let attempt = west.attempt().await;
    assert_eq!(attempt.outcome, Outcome::Stored);
    assert_eq!((attempt.generation, attempt.tries), (1, 1));
    let stored = west.api.get(STORED).unwrap();
    assert_eq!(stored["metadata"]["ownerReferences"][0]["uid"], "site-uid");
    assert_eq!(
        stored["metadata"]["annotations"]["internal.spanwire.io/token"],
        "token-uid"
    );
    let links: Value = serde_json::from_str(
        stored["metadata"]["annotations"]["internal.spanwire.io/links"]
            .as_str()
            .unwrap(),
    )
    .unwrap();
    assert_eq!(links[0]["name"], "t");
    assert_eq!(links[0]["endpoints"][0]["host"], "10.9.8.7");
    let secret: k8s_openapi::api::core::v1::Secret = serde_json::from_value(stored).unwrap();
    let facts = crate::facts::secret_facts(&secret);
    assert_eq!(facts.certificate().unwrap().subject, "site-uid");
    assert_eq!(facts.pair.unwrap().chain_error, None);
    assert_eq!(cluster.counted(), 1);

    // Killed before anybody heard of it: the same claim, the same end.
    let again = west.attempt().await;
    assert_eq!(again.outcome, Outcome::Stored);
    assert_eq!(cluster.counted(), 1);
}

#[tokio::test]
async fn refusals_are_told_apart() {
    let cluster = Cluster::new(1);
    let listening = listening(cluster.server()).await;
    assert_eq!(
        west(&listening, "wrong").attempt().await.outcome,
        Outcome::CodeRefused
    );
    cluster.edit(|grant| grant["status"]["redemptions"] = json!(1));
    assert_eq!(
        west(&listening, CODE).attempt().await.outcome,
        Outcome::UsedUp
    );
    cluster.edit(|grant| grant["status"]["expirationTime"] = json!(in_seconds(-1)));
    assert_eq!(
        west(&listening, CODE).attempt().await.outcome,
        Outcome::Expired
    );
    *cluster.site.lock().unwrap() = None;
    cluster.edit(|grant| {
        grant["status"]["redemptions"] = json!(0);
        grant["status"]["expirationTime"] = json!(in_seconds(60));
    });
    let mut west = west(&listening, CODE);
    assert!(matches!(
        west.attempt().await.outcome,
        Outcome::Unreachable(_)
    ));
    assert_eq!(west.attempt().await.tries, 2);
    assert_eq!(west.api.get(STORED), None);
}

#[tokio::test]
async fn only_the_tokens_ca_is_trusted() {
    let listening = listening(Cluster::new(1).server()).await;
    let with = |ca: &str| {
        let west = west(&listening, CODE);
        let mut token = west.api.get(TOKEN).unwrap();
        token["spec"]["ca"] = json!(ca);
        west.api.put(TOKEN, token);
        west
    };
    assert_eq!(
        with(&authority("x").ca).attempt().await.outcome,
        Outcome::Untrusted(
            "the certificate at the token's url is not vouched for by the token's ca".to_owned()
        )
    );
    assert_eq!(
        with("junk").attempt().await.outcome,
        Outcome::Invalid(
            "the token's ca cannot be used: ca holds no certificate in PEM".to_owned()
        )
    );
    assert_eq!(
        with("").attempt().await.outcome,
        Outcome::Invalid("token does not have a CA".to_owned())
    );
    let elsewhere = signed(&listening.ca, &["elsewhere.example"]);
    listening
        .served
        .set(&elsewhere.certificate, &elsewhere.key)
        .unwrap();
    assert_eq!(
        west(&listening, CODE).attempt().await.outcome,
        Outcome::Untrusted(
            "the certificate at the token's url is not for the host that the url names".to_owned()
        )
    );
}

/// A clock that is a year off, here or there, comes right again: the token must not have died of it.
#[tokio::test]
async fn a_certificate_of_another_time_is_no_final_refusal() {
    let cluster = Cluster::new(1);
    let listening = listening(cluster.server()).await;
    let at = |seconds: i64| {
        Timestamp::from_second(Clock::default().now().as_second() + seconds).unwrap()
    };
    let signer = signer(&listening.ca);
    for (from, to, how) in [
        (-7200, -3600, "has expired"),
        (1800, 3000, "is not valid yet"),
    ] {
        let order = Issue {
            not_before: at(from),
            not_after: at(to),
            ..order("server", &["127.0.0.1"], true)
        };
        let credential = pki::issue(&order, Some(&signer)).unwrap();
        let served = &listening.served;
        served
            .set(&credential.certificate, &credential.key)
            .unwrap();
        assert_eq!(
            west(&listening, CODE).attempt().await.outcome,
            Outcome::Unreachable(format!(
                "the certificate at the token's url {how}, by the clock here: set whichever clock is wrong"
            ))
        );
    }
    assert_eq!(cluster.counted(), 0);
}

#[tokio::test]
async fn nobody_is_dialled_who_may_not_be() {
    let listening = listening(Cluster::new(1).server()).await;
    let mut west = west(&listening, CODE);
    let (sender, attempts) = mpsc::unbounded_channel();
    west.attempts = attempts;
    let report = Arc::new(move |_, attempt| sender.send(attempt).unwrap());
    let metrics = Arc::new(Metrics::new("0"));
    west.pool = Pool::new(
        west.api.client(),
        Clock::default(),
        Policy::default(),
        Leading::for_test().1,
        metrics,
        report,
        Dying::default(),
    );
    assert_eq!(west.attempt().await.outcome, not_dialled());
}

#[tokio::test]
async fn a_closed_port_and_a_silent_one_look_the_same() {
    let mut listening = listening(Cluster::new(1).server()).await;
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listening.address = closed.local_addr().unwrap();
    let mut silent = west(&listening, CODE);
    let waiting = {
        silent.pool.submit(act(1));
        let (stream, _) = closed.accept().await.unwrap();
        drop(stream);
        silent.attempts.recv().await.unwrap().outcome
    };
    drop(closed);
    let refused = west(&listening, CODE).attempt().await.outcome;
    assert_eq!(waiting, refused);
    assert!(matches!(refused, Outcome::Unreachable(_)));
}

#[tokio::test]
async fn a_token_is_redeemed_once_at_a_time_and_again_when_it_has_changed() {
    let cluster = Cluster::new(5);
    let listening = listening(cluster.server()).await;
    let mut west = west(&listening, CODE);
    for _ in 0..5 {
        west.pool.submit(act(1));
    }
    assert_eq!(west.attempts.recv().await.unwrap().outcome, Outcome::Stored);
    assert_eq!(west.api.count("POST", "/secrets"), 1);

    // While the first is under way, the token changes.
    let api = west.api.clone();
    west.api.fault(move |call| {
        if call.method == "GET" && call.path == TOKEN && call.before == 1 {
            let mut token = api.get(TOKEN).unwrap();
            token["metadata"]["generation"] = json!(2);
            api.put(TOKEN, token);
        }
        Fault::None
    });
    west.pool.submit(act(1));
    west.pool.submit(act(2));
    let attempt = west.attempts.recv().await.unwrap();
    assert_eq!((attempt.generation, attempt.tries), (2, 1));
}

#[tokio::test]
async fn an_answer_is_stored_whatever_becomes_of_the_write() {
    for fault in [
        Fault::LoseAnswer,
        Fault::LoseRequest,
        Fault::Refuse(503),
        Fault::DoAndRefuse(504),
    ] {
        let cluster = Cluster::new(1);
        let listening = listening(cluster.server()).await;
        let mut west = west(&listening, CODE);
        west.api.fault(move |call| {
            if call.method == "POST" && call.before == 0 {
                fault
            } else {
                Fault::None
            }
        });
        assert_eq!(west.attempt().await.outcome, Outcome::Stored, "{fault:?}");
        assert!(west.api.get(STORED).is_some());
        assert_eq!(cluster.counted(), 1);
    }
}

#[tokio::test]
async fn a_strangers_secret_is_left_alone() {
    let listening = listening(Cluster::new(1).server()).await;
    let mut west = west(&listening, CODE);
    west.api.put(
        STORED,
        json!({"metadata": {"name": "t", "namespace": "west"}, "kind": "Secret"}),
    );
    let Outcome::Unreachable(message) = west.attempt().await.outcome else {
        panic!()
    };
    assert!(message.contains("is not this token's"));
    assert_eq!(west.api.get(STORED).unwrap().get("data"), None);
}

#[tokio::test]
async fn a_token_that_is_gone_or_another_now_is_not_redeemed() {
    let cluster = Cluster::new(1);
    let listening = listening(cluster.server()).await;
    let west = west(&listening, CODE);
    let mut token = west.api.get(TOKEN).unwrap();
    token["metadata"]["uid"] = json!("another");
    west.api.put(TOKEN, token);
    west.pool.submit(act(1));
    let mut attempts = west.attempts;
    assert!(
        timeout(Duration::from_millis(300), attempts.recv())
            .await
            .is_err()
    );
    assert_eq!(cluster.counted(), 0);
}

/// The address that is looked up is not the only one: a balancer's, another replica's, one by a detour.
#[tokio::test]
async fn an_api_server_is_known_by_its_certificate_wherever_it_is_met() {
    let listening = listening(Cluster::new(1).server()).await;
    let hosts = ["127.0.0.1", "kubernetes", "kubernetes.default.svc"];
    let api_server = signed(&listening.ca, &hosts);
    listening
        .served
        .set(&api_server.certificate, &api_server.key)
        .unwrap();
    assert_eq!(
        west(&listening, CODE).attempt().await.outcome,
        not_dialled()
    );
}

#[tokio::test]
async fn the_api_server_is_not_dialled_where_it_says_it_is() {
    let listening = listening(Cluster::new(1).server()).await;
    let mut west = west(&listening, CODE);
    let told = json!([{"clientCIDR": "0.0.0.0/0", "serverAddress": listening.address.to_string()}]);
    west.api.put(
        "/api",
        json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": told}),
    );
    assert_eq!(west.attempt().await.outcome, not_dialled());
}
