use crate::client::*; use crate::link::*; use crate::program::*; use crate::pki::*; use serde_json::json;
#[tokio::test]
async fn dump() {
    for (i, j) in [(1,0),(0,1)] {
        let p = programs(); 
        let a = p[i].start("site-a"); let b = p[j].start("site-b");
        let ca = Ca::new("pair");
        ca.issue(a.path("server").as_ref(), "server", Leaf::Good);
        ca.issue(b.path("client").as_ref(), "skupper-client", Leaf::Good);
        let (mut on_a, mut on_b) = (Client::open(a.amqp).await, Client::open(b.amqp).await);
        let port = free_port();
        on_a.create("sslProfile", "server", profile(&a.path("server"))).await;
        on_a.create("listener", "l", json!({"role": "inter-router", "host": "127.0.0.1", "port": port, "sslProfile": "server", "saslMechanisms": "EXTERNAL", "authenticatePeer": true})).await;
        on_b.create("sslProfile", "client", profile(&b.path("client"))).await;
        on_b.create("connector", "c", json!({"role": "inter-router", "host": "127.0.0.1", "port": port, "sslProfile": "client"})).await;
        tokio::time::sleep(std::time::Duration::from_secs(4)).await;
        println!("listener {i}: a {:?} {:?}", on_a.links("inter-router").await.len(), on_a.links("inter-router-data").await.len());
        println!("b {:?} {:?} {}", on_b.links("inter-router").await.len(), on_b.links("inter-router-data").await.len(), on_b.entity("connector","c").await.unwrap()["connectionMsg"]);
    }
}
