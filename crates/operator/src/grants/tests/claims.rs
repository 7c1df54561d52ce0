//! Is a claim counted once, and nothing else?

use super::*;
use crate::grants::ledger::Recorded;

#[tokio::test]
async fn a_right_code_gets_a_credential_and_a_link() {
    let cluster = Cluster::new(1);
    let answer = redeem(&cluster.server(), CODE, "n").await.unwrap();
    assert!(!answer.is_repeated);
    let documents: Vec<Value> = serde_saphyr::from_multiple(&answer.body).unwrap();
    assert_eq!(documents.len(), 2);
    assert!(answer.body.starts_with("---\n"));
    let [secret, link] = documents.as_slice() else {
        panic!()
    };
    assert_eq!(secret["kind"], "Secret");
    assert_eq!(secret["metadata"], json!({"name": "t"}));
    assert_eq!(secret["type"], "kubernetes.io/tls");
    let secret: k8s_openapi::api::core::v1::Secret =
        serde_json::from_value(secret.clone()).unwrap();
    let facts = crate::facts::secret_facts(&secret);
    let pair = facts.pair.as_ref().unwrap();
    assert_eq!((&pair.key_error, &pair.chain_error), (&None, &None));
    let certificate = facts.certificate().unwrap();
    assert_eq!(certificate.subject, "site-uid");
    assert!(certificate.client && !certificate.server);
    assert_eq!(link["apiVersion"], "skupper.io/v2alpha1");
    assert_eq!(link["kind"], "Link");
    assert_eq!(link["metadata"], json!({"name": "t"}));
    assert_eq!(
        link["spec"],
        json!({
            "endpoints": [
                {"name": "inter-router", "host": "10.9.8.7", "port": "55671", "group": "skupper-router"},
                {"name": "edge", "host": "10.9.8.7", "port": "45671", "group": "skupper-router"},
            ],
            "tlsCredentials": "t",
        })
    );
    assert_eq!(cluster.counted(), 1);
    assert_eq!(*cluster.events.lock().unwrap(), ["Redeemed"]);
}

/// A final refusal would be the end of the token.
#[tokio::test]
async fn who_does_not_know_every_grant_yet_sends_nobody_away_for_good() {
    let cluster = Cluster::new(1);
    let unknown = cluster.directory(|| None);
    let early = Directory {
        is_complete: Arc::new(|| false),
        ..unknown.clone()
    };
    let refused = |directory| {
        let server = cluster.server_with(directory);
        async move { redeem(&server, CODE, "n").await.err() }
    };
    assert_eq!(refused(early).await, Some(Refusal::Unavailable));
    assert_eq!(refused(unknown).await, Some(Refusal::UnknownGrant));
    assert_eq!(cluster.counted(), 0);
}

#[tokio::test]
async fn each_group_of_routers_gets_a_link() {
    let cluster = Cluster::new(2);
    if let Some(site) = cluster.site.lock().unwrap().as_mut() {
        for endpoint in site.endpoints.clone() {
            site.endpoints.push(Endpoint {
                group: "skupper-router-2".to_owned(),
                ..endpoint
            });
        }
    }
    let answer = redeem(&cluster.server(), CODE, "n").await.unwrap();
    let documents: Vec<Value> = serde_saphyr::from_multiple(&answer.body).unwrap();
    let names: Vec<&Value> = documents
        .iter()
        .map(|document| &document["metadata"]["name"])
        .collect();
    assert_eq!(names, ["t", "t-1", "t-2"]);
    assert_eq!(documents[1]["spec"]["tlsCredentials"], "t");

    // A name that leaves no room for the number costs nothing.
    let server = cluster.server();
    let refused = async |length| {
        let mut request = request(CODE, "another");
        request.name = Some("t".repeat(length));
        let answer = server.redeem(SOURCE.parse().unwrap(), request).await;
        answer.err()
    };
    assert_eq!(refused(252).await, Some(Refusal::BadHeader("name")));
    assert_eq!(cluster.counted(), 1);
    assert_eq!(refused(251).await, None);
}

#[tokio::test]
async fn never_more_than_n() {
    let cluster = Cluster::new(3);
    // Two replicas, and stores that never hear of anything.
    let stale = cluster.api.get(GRANT);
    let servers = [
        cluster.server(),
        cluster.server_that_knows(move || stale.clone()),
        cluster.server(),
    ];
    let redeemers = (0..30).map(|n| {
        let server = servers[n % 3].clone();
        async move { redeem(&server, CODE, &n.to_string()).await }
    });
    let answers = join_all(redeemers).await;
    let granted = answers.iter().filter(|answer| answer.is_ok()).count();
    assert_eq!(granted, 3);
    for refusal in answers.into_iter().filter_map(Result::err) {
        assert_eq!(refusal, Refusal::UsedUp);
    }
    assert_eq!(cluster.counted(), 3);
}

#[tokio::test]
async fn who_waits_is_recorded_with_the_others_in_one_write() {
    let cluster = Cluster::new(20);
    let server = cluster.server();
    let grant: AccessGrant = serde_json::from_value(cluster.api.get(GRANT).unwrap()).unwrap();
    let grant = GrantRecord::of(&grant);
    // The first does not wait; of the others two are one, and nine come too late.
    let claims: Vec<String> = (0..30).map(|n: usize| n.min(28).to_string()).collect();
    let answers = join_all(claims.iter().map(|claim| server.record(&grant, claim))).await;
    assert_eq!(cluster.api.count("PATCH", "g/status"), 2);
    assert_eq!(cluster.counted(), 20);
    let count = |wanted: Result<Recorded, Refusal>| {
        answers.iter().filter(|answer| **answer == wanted).count()
    };
    for n in 1..=20 {
        assert_eq!(count(Ok(Recorded::New(n))), 1);
    }
    assert_eq!(count(Err(Refusal::UsedUp)), 10);

    // Whoever has the turn gives up, and the others take it.
    let cluster = Cluster::new(5);
    let server = cluster.server();
    cluster.api.fault(|call| match call.before {
        0 => Fault::Hang,
        _ => Fault::None,
    });
    let impatient = timeout(Duration::from_millis(50), server.record(&grant, "0"));
    let patient = ["1", "2"].map(|claim| server.record(&grant, claim));
    let (gone, answers) = futures::join!(impatient, join_all(patient));
    assert!(gone.is_err());
    assert_eq!(answers, [Ok(Recorded::New(1)), Ok(Recorded::New(2))]);
}

#[tokio::test]
async fn a_repeat_is_answered_and_not_counted_by_any_replica() {
    let cluster = Cluster::new(1);
    redeem(&cluster.server(), CODE, "mine").await.unwrap();
    let (one, other) = (cluster.server(), cluster.server());
    for server in [&one, &other, &one] {
        assert!(redeem(server, CODE, "mine").await.unwrap().is_repeated);
    }
    // The same nonce for another name is another claim.
    let mut stolen = request(CODE, "mine");
    stolen.name = Some("u".to_owned());
    assert_eq!(
        one.redeem(SOURCE.parse().unwrap(), stolen).await.err(),
        Some(Refusal::UsedUp)
    );
    // The time of a grant ends for new claims.
    cluster.edit(|grant| grant["status"]["expirationTime"] = json!(in_seconds(-1)));
    assert!(redeem(&one, CODE, "mine").await.unwrap().is_repeated);
    assert_eq!(cluster.counted(), 1);
    // A claim is remembered for an hour, be it written down for longer.
    cluster.edit(|grant| grant["status"]["claims"][0]["time"] = json!(in_seconds(-3601)));
    let late = redeem(&cluster.server(), CODE, "mine").await.err();
    assert!(matches!(late, Some(Refusal::Expired)), "{late:?}");
}

#[tokio::test]
async fn who_repeats_without_end_is_kept_waiting_and_nobody_else() {
    let cluster = Cluster::new(1);
    let server = cluster.server();
    redeem(&server, CODE, "mine").await.unwrap();
    let repeat = |source: &'static str| {
        let server = server.clone();
        async move {
            let answer = server.redeem(source.parse().unwrap(), request(CODE, "mine"));
            answer.await.map(|answer| answer.is_repeated)
        }
    };
    let mut last = Ok(true);
    for _ in 0..30 {
        last = repeat(SOURCE).await;
    }
    assert_eq!(last, Err(Refusal::TooMany));
    assert_eq!(repeat("192.0.2.77").await, Ok(true));
}

#[tokio::test]
async fn a_record_whose_fate_is_unclear_is_read_back() {
    for fault in [
        Fault::LoseAnswer,
        Fault::DoAndRefuse(504),
        Fault::LoseRequest,
        Fault::Refuse(500),
        Fault::Refuse(409),
    ] {
        let cluster = Cluster::new(2);
        cluster.api.fault(move |call| {
            if call.method == "PATCH" && call.before < 3 {
                fault
            } else {
                Fault::None
            }
        });
        redeem(&cluster.server(), CODE, "n")
            .await
            .unwrap_or_else(|refusal| panic!("{fault:?}: {refusal:?}"));
        assert_eq!(cluster.counted(), 1, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_away_costs_nothing_but_time() {
    for fault in [Fault::LoseRequest, Fault::Refuse(503), Fault::Hang] {
        let cluster = Cluster::new(1);
        cluster.api.fault(move |_| fault);
        let server = cluster.server();
        let refused = refusal(&server, CODE, "n").await.unwrap();
        assert_eq!(refused, Refusal::Unavailable);
        assert_eq!(
            (refused.status(), refused.retry_after()),
            (StatusCode::SERVICE_UNAVAILABLE, Some(5))
        );
        cluster.api.fault(|_| Fault::None);
        assert_eq!(cluster.counted(), 0);
        redeem(&server, CODE, "n").await.unwrap();
        assert_eq!(cluster.counted(), 1);
    }
}

#[tokio::test]
async fn a_record_that_is_refused_for_good_leaves_no_trace() {
    let cluster = Cluster::new(1);
    cluster.api.fault(|call| {
        if call.method == "PATCH" {
            Fault::Refuse(403)
        } else {
            Fault::None
        }
    });
    let server = cluster.server();
    assert_eq!(
        refusal(&server, CODE, "n").await,
        Some(Refusal::Unavailable)
    );
    assert_eq!(cluster.api.count("PATCH", "g/status"), 1);
    cluster.api.fault(|_| Fault::None);
    assert_eq!(cluster.counted(), 0);
    redeem(&server, CODE, "other").await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_made_is_not_counted() {
    let cluster = Cluster::new(1);
    let server = cluster.server();
    let good = cluster.site.lock().unwrap().clone().unwrap();
    let with = |site: Option<Offer>| *cluster.site.lock().unwrap() = site;
    with(None);
    assert_eq!(
        refusal(&server, CODE, "n").await,
        Some(Refusal::NoSite("east".to_owned()))
    );
    with(Some(Offer {
        edge: true,
        ..good.clone()
    }));
    assert_eq!(refusal(&server, CODE, "n").await, Some(Refusal::EdgeSite));
    with(Some(Offer {
        endpoints: Vec::new(),
        ..good.clone()
    }));
    assert_eq!(refusal(&server, CODE, "n").await, Some(Refusal::NoEndpoint));
    for issuer in ["", "absent"] {
        with(Some(Offer {
            issuer: issuer.to_owned(),
            ..good.clone()
        }));
        assert_eq!(refusal(&server, CODE, "n").await, Some(Refusal::NoIssuer));
    }
    with(Some(good));
    let ca = cluster.api.get(CA).unwrap();
    let mut junk = ca.clone();
    junk["data"]["tls.key"] = json!("anVuaw==");
    cluster.api.put(CA, junk);
    assert_eq!(refusal(&server, CODE, "n").await, Some(Refusal::NoIssuer));
    cluster.api.put(CA, ca);
    assert_eq!(cluster.counted(), 0);
    redeem(&server, CODE, "n").await.unwrap();
}

#[tokio::test]
async fn the_issuer_that_a_grant_names_signs() {
    let cluster = Cluster::new(1);
    cluster.edit(|grant| grant["spec"]["issuer"] = json!("another-ca"));
    let server = cluster.server();
    assert_eq!(refusal(&server, CODE, "n").await, Some(Refusal::NoIssuer));
    let mut ca = cluster.api.get(CA).unwrap();
    ca["metadata"]["name"] = json!("another-ca");
    cluster
        .api
        .put(&CA.replace("skupper-site-ca", "another-ca"), ca);
    redeem(&server, CODE, "n").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_ca_that_stays_the_same_is_read_once_in_a_while() {
    let cluster = Cluster::new(10);
    let server = cluster.server();
    let reads = async |nonce: &str| {
        redeem(&server, CODE, nonce).await.unwrap();
        cluster.api.count("GET", "skupper-site-ca")
    };
    assert_eq!(reads("a").await, 1);
    assert_eq!(reads("b").await, 1);
    // The watch tells of another revision.
    cluster.api.put(CA, cluster.api.get(CA).unwrap());
    assert_eq!(reads("c").await, 2);
    assert_eq!(reads("d").await, 2);
    assert!(server.signers.holds_any());
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(!server.signers.holds_any());
    assert_eq!(reads("e").await, 3);

    // A CA that is gone signs nothing, however short ago it was used.
    cluster.api.remove(CA);
    assert_eq!(refusal(&server, CODE, "f").await, Some(Refusal::NoIssuer));
}

#[tokio::test]
async fn nothing_is_told_to_those_who_do_not_know_the_code() {
    let cluster = Cluster::new(1);
    let server = cluster.server();
    let wrong = CODE.replace('X', "Y");
    assert_eq!(
        refusal(&server, &wrong, "n").await,
        Some(Refusal::WrongCode)
    );
    redeem(&server, CODE, "n").await.unwrap();
    assert_eq!(
        refusal(&server, &wrong, "n").await,
        Some(Refusal::WrongCode)
    );
    cluster.edit(|grant| grant["status"]["expirationTime"] = json!(in_seconds(-1)));
    assert_eq!(
        refusal(&server, &wrong, "n").await,
        Some(Refusal::WrongCode)
    );
    assert_eq!(refusal(&server, "", "n").await, Some(Refusal::WrongCode));
    let mut unknown = request(CODE, "n");
    unknown.grant = "another".to_owned();
    assert_eq!(
        server.redeem(SOURCE.parse().unwrap(), unknown).await.err(),
        Some(Refusal::UnknownGrant)
    );
    // A grant without a code, as every grant is for a moment.
    cluster.edit(|grant| {
        grant["status"].as_object_mut().unwrap().remove("code");
    });
    assert_eq!(refusal(&server, "", "n").await, Some(Refusal::UnknownGrant));
}

#[tokio::test]
async fn a_grant_that_has_nothing_left_says_why_to_those_who_know_its_code() {
    let cluster = Cluster::new(1);
    let server = cluster.server();
    cluster.edit(|grant| grant["status"]["redemptions"] = json!(1));
    assert_eq!(refusal(&server, CODE, "n").await, Some(Refusal::UsedUp));
    assert_eq!(*cluster.events.lock().unwrap(), ["UsedUpGrantTried"]);
    cluster.edit(|grant| grant["status"]["expirationTime"] = json!(in_seconds(-1)));
    assert_eq!(refusal(&server, CODE, "n").await, Some(Refusal::Expired));
    cluster.edit(|grant| grant["status"]["expirationTime"] = json!("soon"));
    assert_eq!(
        refusal(&server, CODE, "n").await,
        Some(Refusal::CorruptGrant)
    );
    assert_eq!(cluster.api.count("PATCH", "g/status"), 0);
}

#[tokio::test]
async fn wrong_codes_cost_their_source_and_never_lock_a_grant() {
    let cluster = Cluster::new(1);
    let server = cluster.server();
    let mut answers = Vec::new();
    for _ in 0..100 {
        answers.push(refusal(&server, "wrong", "n").await.unwrap());
    }
    assert_eq!(answers[0], Refusal::WrongCode);
    assert_eq!(answers[99], Refusal::TooMany);
    // From the same address, which may be that of many.
    redeem(&server, CODE, "n").await.unwrap();
}

#[tokio::test]
async fn a_grant_that_was_deleted_or_made_anew_gives_nothing() {
    let cluster = Cluster::new(1);
    let known = cluster.api.get(GRANT);
    let server = cluster.server_that_knows(move || known.clone());
    cluster.edit(|grant| grant["metadata"]["uid"] = json!("another"));
    assert_eq!(
        refusal(&server, CODE, "n").await,
        Some(Refusal::UnknownGrant)
    );
    assert_eq!(cluster.counted(), 0);
}
