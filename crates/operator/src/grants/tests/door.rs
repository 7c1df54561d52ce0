//! Does the door speak as upstream's does, and hold off whoever would block it?

use super::*;

#[tokio::test]
async fn the_door_speaks_as_upstreams_does() {
    let cluster = Cluster::new(1);
    let listening = listening(cluster.server()).await;
    let answer = async |request: String| {
        let answer = said(&listening, &request).await;
        let status = answer.split(' ').nth(1).unwrap_or_default().to_owned();
        (
            status,
            answer.rsplit("\r\n").next().unwrap_or_default().to_owned(),
        )
    };
    let told = |status: &str, text: &str| (status.to_owned(), text.to_owned());
    assert_eq!(
        answer(post("/grant-uid", "", CODE).replace("POST", "GET")).await,
        told("405", "Only POST is supported")
    );
    assert_eq!(
        answer(post("/other", "", CODE)).await,
        told("404", "No such claim")
    );
    assert_eq!(
        answer(post("/", "", CODE)).await,
        told("404", "No such claim")
    );
    assert_eq!(
        answer(post("/grant-uid", "", "wrong")).await,
        told("403", "Redemption of access token refused")
    );
    assert_eq!(
        answer(post("/grant-uid", "", &"x".repeat(2000))).await,
        told("400", "Request body not valid")
    );
    let head =
        "POST /grant-uid HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked";
    let body = "x".repeat(2000);
    assert_eq!(
        answer(format!("{head}\r\n\r\n7fffffff\r\n{body}")).await,
        told("400", "Request body not valid")
    );
    assert_eq!(
        answer(post("/grant-uid", "name: A_b\r\n", CODE)).await,
        told("400", "Request header name not valid")
    );
    let huge = format!("x: {}\r\n", "y".repeat(9000));
    assert_eq!(answer(post("/grant-uid", &huge, CODE)).await.0, "431");
    assert_eq!(cluster.counted(), 0);
    // Upstream takes all slashes out.
    let (status, yaml) = answer(post("//grant-uid/", "name: t\r\nsubject: s\r\n", CODE)).await;
    assert_eq!(status, "200");
    assert!(yaml.contains("kind: Secret"));
    assert_eq!(
        answer(post("/grant-uid", "", CODE)).await,
        told("404", "No such access granted")
    );
}

#[tokio::test]
async fn http2_is_spoken() {
    let cluster = Cluster::new(1);
    let listening = listening(cluster.server()).await;
    let mut tls = client_tls(&listening.ca, &[&rustls::version::TLS13]);
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let stream = connected(&listening, tls).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    let mut task = JoinSet::new();
    task.spawn(connection);
    let request = http::Request::post("https://127.0.0.1/grant-uid")
        .header("name", "t")
        .body(Full::new(Bytes::from(CODE)))
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert!(body.starts_with(b"---\n"));
}

#[tokio::test]
async fn only_tls_13_is_spoken() {
    let listening = listening(Cluster::new(1).server()).await;
    let tls = client_tls(&listening.ca, &[&rustls::version::TLS12]);
    assert!(connected(&listening, tls).await.is_err());
    let mut plain = TcpStream::connect(listening.address).await.unwrap();
    plain
        .write_all(post("/grant-uid", "", CODE).as_bytes())
        .await
        .unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!String::from_utf8_lossy(&answer).contains("HTTP"));
}

#[tokio::test]
async fn a_new_certificate_is_served_to_the_next_client() {
    let mut listening = listening(Cluster::new(1).server()).await;
    assert!(
        said(&listening, &post("/other", "", ""))
            .await
            .contains("404")
    );
    let ca = authority("another ca");
    let credential = signed(&ca, &["127.0.0.1"]);
    assert!(
        listening
            .served
            .set(&credential.certificate, &ca.key)
            .is_err()
    );
    assert!(listening.served.set("junk", "junk").is_err());
    assert!(
        said(&listening, &post("/other", "", ""))
            .await
            .contains("404")
    );
    listening
        .served
        .set(&credential.certificate, &credential.key)
        .unwrap();
    let tls = client_tls(&listening.ca, &[&rustls::version::TLS13]);
    assert!(connected(&listening, tls).await.is_err());
    listening.ca = ca;
    assert!(
        said(&listening, &post("/other", "", ""))
            .await
            .contains("404")
    );
}

#[tokio::test]
async fn without_a_certificate_nobody_gets_in() {
    let mut listening = listening(Cluster::new(1).server()).await;
    let empty = Served::nothing().unwrap();
    assert!(!empty.is_set() && listening.served.is_set());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listening.address = listener.local_addr().unwrap();
    let (server, stop) = (Cluster::new(1).server(), listening.stop.clone());
    listening
        .task
        .spawn(async move { server.run(listener, &empty, stop).await });
    let tls = client_tls(&listening.ca, &[&rustls::version::TLS13]);
    assert!(connected(&listening, tls).await.is_err());
}

#[tokio::test]
async fn a_crowd_of_idle_clients_holds_up_nobody() {
    let cluster = Cluster::new(1);
    let listening = listening(cluster.server()).await;
    let mut crowd = Vec::new();
    for _ in 0..400 {
        crowd.push(TcpStream::connect(listening.address).await.unwrap());
    }
    let request = post("/grant-uid", "name: t\r\n", CODE);
    let answer = timeout(Duration::from_secs(3), said(&listening, &request));
    assert!(answer.await.unwrap().starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_server_that_stops_finishes_what_it_has_begun() {
    let cluster = Cluster::new(1);
    let mut listening = listening(cluster.server()).await;
    let stop = listening.stop.clone();
    cluster.api.fault(move |_| {
        stop.cancel();
        Fault::None
    });
    let answer = said(&listening, &post("/grant-uid", "name: t\r\n", CODE)).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    timeout(Duration::from_secs(2), listening.task.join_next())
        .await
        .unwrap();
    assert!(TcpStream::connect(listening.address).await.is_err());
}
