use crate::client::*; use crate::program::*; use serde_json::json;
#[tokio::test]
async fn dump() {
    let busy = || ("CREATE", "listener","busy",json!({"host":"127.0.0.1","port":"20999"}));
    let good = |n: &'static str, p: &str| ("CREATE","listener",n,json!({"host":"127.0.0.1","port":p}));
    let del = || ("DELETE","listener","busy",json!({}));
    let con = || ("CREATE","connector","con",json!({"host":"127.0.0.1","port":"1"}));
    let _t = std::net::TcpListener::bind("127.0.0.1:20999").unwrap();
    for (name, steps) in [("busy,good", vec![busy(), good("g","20996")]), ("busy,con", vec![busy(), con()]), ("busy,del,good", vec![busy(), del(), good("g","20996")]), ("busy,del,con,good", vec![busy(), del(), con(), good("g","20996")]), ("busy,del", vec![busy(), del()]), ("busy,del,busy,del,good", vec![busy(), del(),busy(),del(),good("g","20996")]),("con,busy,del,good", vec![con(),busy(), del(),good("g","20996")])] {
      for pause in [0,100] {
      let mut results=vec![];
      for _ in 0..6 {
        let program = programs().remove(1);
        let mut r = program.start("site-b");
        let mut c = Client::open(r.amqp).await;
        let mut res=vec![];
        for (op,k,n,b) in steps.iter() {
        let kk=format!("io.skupper.router.{k}");
        let a = c.address.clone();
        c.send(Some(a), fe2o3_amqp::types::messaging::MessageId::String("q".into()), vec![("operation",(*op).into()),("type",kk.as_str().into()),("name",(*n).into())], amqp(b.clone())).await;
        let x = c.receive().await.map(|r| r.1.status);
        res.push(x.unwrap_or(0));
        if x.is_none() { break }
        tokio::time::sleep(std::time::Duration::from_millis(pause)).await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        if !r.is_running() { res.push(-1); }
        results.push(res);
      }
      println!("== {name} pause {pause}: {results:?}");
      }
    }
}
