use crate::client::*; use crate::link::*; use crate::program::*; use serde_json::json; use fe2o3_amqp::types::primitives::Value;
async fn ask(c: &mut Client, p: &[(&str,&str)], b: Value) -> Option<Reply> {
  let props = p.iter().map(|(n,v)| (*n, (*v).into())).collect();
  let a = c.address.clone();
  c.send(Some(a), fe2o3_amqp::types::messaging::MessageId::String("q".into()), props, b).await;
  c.receive().await.map(|r| r.1)
}
#[tokio::test]
async fn dump() {
    for (n, program) in programs().into_iter().enumerate() {
        let mut pair = Pair::start(&program).await;
        pair.dial().await;
        pair.on_b.wait_for_neighbours(&["site-a"], std::time::Duration::from_secs(5)).await;
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        pair.on_b.create("tcpListener","tl",json!({"host":"127.0.0.1","port":"19999","address":"be","siteId":"s"})).await;
        pair.on_b.create("tcpConnector","tc",json!({"host":"127.0.0.1","port":"19998","address":"be2","siteId":"s","processId":"p"})).await;
        pair.on_b.create("tcpListener","tm",json!({"host":"127.0.0.1","port":"19997","multiAddressStrategy":"priority"})).await;
        let r=pair.on_b.create("listenerAddress","la",json!({"address":"x","value":3,"listener":"tm"})).await; println!("{r:?}");
        let mut out = String::new();
        for kind in ["router","site","log","network","sslProfile","listener","connector","tcpListener","tcpConnector","listenerAddress","router.node","connection","router.config.address"] {
            let k = format!("io.skupper.router.{kind}");
            let Some(reply) = ask(&mut pair.on_b, &[("operation","QUERY"),("entityType",&k)], amqp(json!({"attributeNames":[]}))).await else { out += &format!("== {kind} NO REPLY\n"); pair.on_b = Client::open(pair.b.amqp).await; continue };
            out += &format!("== {kind} {} {}\n", reply.status, reply.description);
            if let Value::Map(m)=&reply.body { 
                let get=|n:&str| m.get(&Value::String(n.into())).cloned();
                if let (Some(Value::List(names)),Some(Value::List(rows)))=(get("attributeNames"),get("results")) {
                    out += &format!("{}\n", names.iter().map(|n| format!("{n:?}")).collect::<Vec<_>>().join(" "));
                    for row in rows { if let Value::List(row)=row { out += "--\n"; for (n,v) in names.iter().zip(row) { out += &format!("  {n:?}: {v:?}\n"); } } }
                }
            }
        }
        for (op,kind,name) in [("READ","router.config.address","x"),("READ","connection","x"),("DELETE","connection","x"),("GET-MGMT-NODES","","")] {
            let mut props=vec![("operation",op)]; let k=format!("io.skupper.router.{kind}"); if !kind.is_empty(){props.push(("type",&k)); props.push(("name",name));}
            let reply = ask(&mut pair.on_b, &props, amqp(json!({}))).await; if reply.is_none() { pair.on_b = Client::open(pair.b.amqp).await; }
            out += &format!("{op} {kind}: {reply:?}\n");
        }
        for props in [vec![("operation","QUERY")], vec![("operation","NONSENSE")], vec![("operation","READ")], vec![], vec![("operation","READ"),("type","io.skupper.router.connector")],vec![("operation","CREATE"),("name","x")], vec![("operation","UPDATE"),("type","io.skupper.router.sslProfile"),("name","client")]] {
            for body in [Value::Null, amqp(json!({}))] {
            let reply = ask(&mut pair.on_b, &props, body).await; if reply.is_none() { pair.on_b = Client::open(pair.b.amqp).await; }
            out += &format!("{props:?}: {}\n", reply.map_or("NO REPLY".into(), |reply| format!("{} {}", reply.status, reply.description.chars().take(200).collect::<String>()))); }
        }
        for (k,n,b) in [("sslProfile","a",json!({"ordinal":"x"})),("sslProfile","b",json!({"identity":"x"})),("sslProfile","c",json!({"ordinal":-1})),("listenerAddress","d",json!({})),("listener","e",json!({"role":"edge","port":"abc"})),("connector","f",json!({"verifyHostname":"maybe"})),("router","g",json!({})),("log","h",json!({"module":"SERVER"})), ("connector","i",json!({"sslProfile":null,"port":"1"})), ("sslProfile","", json!({}))] {
            let kk=format!("io.skupper.router.{k}"); let Some(reply) = ask(&mut pair.on_b, &[("operation","CREATE"),("type",&kk),("name",n)], amqp(b.clone())).await else { out += &format!("CREATE {k} {b} NO REPLY\n"); pair.on_b = Client::open(pair.b.amqp).await; continue };
            out += &format!("CREATE {k} {b}: {} {}\n", reply.status, reply.description);
        }
        std::fs::write(format!("/tmp/standin-dump-{n}"), out).unwrap();
    }
}
