//! A management client for tests: no heartbeats of its own making, no retries, no opinions.

use std::time::{Duration, Instant};

use fe2o3_amqp::connection::ConnectionHandle;
use fe2o3_amqp::session::SessionHandle;
use fe2o3_amqp::types::messaging::{
    AmqpValue, ApplicationProperties, Body, Message, MessageId, Properties, Source,
};
use fe2o3_amqp::types::primitives::{OrderedMap, SimpleValue, Value};
use fe2o3_amqp::{Connection, Receiver, Sender, Session};
use serde_json::{Value as Json, json};

const WAIT: Duration = Duration::from_secs(5);

/// One management connection.
pub(crate) struct Client {
    _connection: ConnectionHandle<()>,
    _session: SessionHandle<()>,
    sender: Sender,
    receiver: Receiver,
    pub(crate) address: String,
    next: u64,
}

/// Status, description and body of one reply.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: i32,
    pub(crate) description: String,
    pub(crate) body: Value,
}

impl Client {
    pub(crate) async fn open(port: u16) -> Self {
        let mut connection = Connection::builder()
            .container_id("conformance")
            .open(format!("amqp://127.0.0.1:{port}").as_str())
            .await
            .unwrap();
        let mut session = Session::begin(&mut connection).await.unwrap();
        let receiver = Receiver::builder()
            .name("replies")
            .source(Source::builder().dynamic(true).build())
            .attach(&mut session)
            .await
            .unwrap();
        let address = receiver.source().as_ref().unwrap().address.clone().unwrap();
        let sender = Sender::attach(&mut session, "requests", "$management")
            .await
            .unwrap();
        Self {
            _connection: connection,
            _session: session,
            sender,
            receiver,
            address,
            next: 0,
        }
    }

    /// Sends a request and waits for the reply to it.
    pub(crate) async fn request(&mut self, properties: &[(&str, &str)], body: Value) -> Reply {
        self.next += 1;
        let id = MessageId::String(format!("request-{}", self.next));
        let properties = properties
            .iter()
            .map(|(n, v)| (*n, SimpleValue::from(*v)))
            .collect();
        self.send(Some(self.address.clone()), id.clone(), properties, body)
            .await;
        let reply = self.receive().await.expect("no reply");
        assert_eq!(reply.0, Some(id), "the correlation id is echoed");
        reply.1
    }

    pub(crate) async fn send(
        &mut self,
        reply_to: Option<String>,
        id: MessageId,
        properties: Vec<(&str, SimpleValue)>,
        body: Value,
    ) {
        let mut application = ApplicationProperties::builder();
        for (name, value) in properties {
            application = application.insert(name, value);
        }
        let message = Message::builder()
            .properties(Properties {
                reply_to,
                correlation_id: Some(id),
                ..Properties::default()
            })
            .application_properties(application.build())
            .value(body)
            .build();
        let sent = tokio::time::timeout(WAIT, self.sender.send(message)).await;
        sent.expect("no credit").unwrap();
    }

    /// The next reply, or nothing that could be read within the time.
    pub(crate) async fn receive(&mut self) -> Option<(Option<MessageId>, Reply)> {
        let received = tokio::time::timeout(WAIT, self.receiver.recv::<Body<Value>>()).await;
        let delivery = received.ok()?.ok()?;
        self.receiver.accept(&delivery).await.unwrap();
        let message = delivery.into_message();
        let application = message.application_properties.unwrap_or_default().0;
        let status = match application.get("statusCode") {
            Some(SimpleValue::Int(status)) => *status,
            other => panic!("statusCode {other:?}"),
        };
        let description = match application.get("statusDescription") {
            Some(SimpleValue::String(text)) => text.clone(),
            other => panic!("statusDescription {other:?}"),
        };
        let body = match message.body {
            Body::Value(AmqpValue(value)) => value,
            _ => Value::Null,
        };
        let id = message
            .properties
            .and_then(|properties| properties.correlation_id);
        Some((
            id,
            Reply {
                status,
                description,
                body,
            },
        ))
    }

    pub(crate) async fn create(&mut self, kind: &str, name: &str, attributes: Json) -> Reply {
        let kind = format!("io.skupper.router.{kind}");
        let properties = [
            ("operation", "CREATE"),
            ("type", kind.as_str()),
            ("name", name),
        ];
        self.request(&properties, amqp(attributes)).await
    }

    pub(crate) async fn update(&mut self, kind: &str, name: &str, attributes: Json) -> Reply {
        let kind = format!("io.skupper.router.{kind}");
        let properties = [
            ("operation", "UPDATE"),
            ("type", kind.as_str()),
            ("name", name),
        ];
        self.request(&properties, amqp(attributes)).await
    }

    pub(crate) async fn delete(&mut self, kind: &str, name: &str) -> Reply {
        let kind = format!("io.skupper.router.{kind}");
        let properties = [
            ("operation", "DELETE"),
            ("type", kind.as_str()),
            ("name", name),
        ];
        self.request(&properties, Value::Null).await
    }

    pub(crate) async fn read(&mut self, kind: &str, name: &str) -> Reply {
        let kind = format!("io.skupper.router.{kind}");
        let properties = [
            ("operation", "READ"),
            ("type", kind.as_str()),
            ("name", name),
        ];
        self.request(&properties, Value::Null).await
    }

    /// All entities of a type, each as a JSON object without its nulls.
    pub(crate) async fn query(&mut self, kind: &str) -> Vec<Json> {
        let kind = format!("io.skupper.router.{kind}");
        let properties = [("operation", "QUERY"), ("entityType", kind.as_str())];
        let reply = self
            .request(&properties, amqp(json!({"attributeNames": []})))
            .await;
        assert_eq!(reply.status, 200, "{}", reply.description);
        rows(&reply.body)
    }

    /// The entity of this type and name.
    pub(crate) async fn entity(&mut self, kind: &str, name: &str) -> Option<Json> {
        self.query(kind)
            .await
            .into_iter()
            .find(|entity| entity["name"] == name)
    }

    /// Rows of connections between routers, by role.
    pub(crate) async fn links(&mut self, role: &str) -> Vec<Json> {
        self.query("connection")
            .await
            .into_iter()
            .filter(|row| row["role"] == role)
            .collect()
    }

    /// The neighbours in our own node.
    pub(crate) async fn link_state(&mut self) -> Vec<String> {
        let nodes = self.query("router.node").await;
        let own = nodes
            .iter()
            .find(|node| node["nextHop"] == "(self)")
            .expect("no own node");
        let neighbours = own["linkState"].as_array().cloned().unwrap_or_default();
        neighbours
            .iter()
            .map(|id| id.as_str().unwrap().to_owned())
            .collect()
    }

    /// Waits until the neighbours are these, and says how long that took.
    pub(crate) async fn wait_for_neighbours(
        &mut self,
        wanted: &[&str],
        limit: Duration,
    ) -> Duration {
        let begun = Instant::now();
        loop {
            let found = self.link_state().await;
            if found == wanted {
                return begun.elapsed();
            }
            assert!(
                begun.elapsed() < limit,
                "linkState is {found:?}, wanted {wanted:?}"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// The results of a QUERY as JSON objects.
pub(crate) fn rows(body: &Value) -> Vec<Json> {
    let Json::Object(mut body) = plain(body) else {
        panic!("a QUERY's body is a map")
    };
    let names = body["attributeNames"].as_array().cloned().unwrap();
    let Some(Json::Array(results)) = body.remove("results") else {
        panic!("no results")
    };
    results
        .into_iter()
        .map(|row| {
            let pairs = names.iter().zip(row.as_array().cloned().unwrap());
            let pairs = pairs.filter(|(_, value)| !value.is_null());
            Json::Object(
                pairs
                    .map(|(n, v)| (n.as_str().unwrap().to_owned(), v))
                    .collect(),
            )
        })
        .collect()
}

/// JSON as AMQP.
pub(crate) fn amqp(value: Json) -> Value {
    match value {
        Json::Null => Value::Null,
        Json::Bool(is_set) => Value::Bool(is_set),
        Json::Number(number) => Value::Int(i32::try_from(number.as_i64().unwrap()).unwrap()),
        Json::String(text) => Value::String(text),
        Json::Array(items) => Value::List(items.into_iter().map(amqp).collect()),
        Json::Object(map) => {
            let map: OrderedMap<Value, Value> = map
                .into_iter()
                .map(|(key, value)| (Value::String(key), amqp(value)))
                .collect();
            Value::Map(map)
        }
    }
}

/// AMQP as JSON; types of numbers are lost.
pub(crate) fn plain(value: &Value) -> Json {
    match value {
        Value::Bool(is_set) => json!(is_set),
        Value::Ubyte(n) => json!(n),
        Value::Ushort(n) => json!(n),
        Value::Uint(n) => json!(n),
        Value::Ulong(n) => json!(n),
        Value::Byte(n) => json!(n),
        Value::Short(n) => json!(n),
        Value::Int(n) => json!(n),
        Value::Long(n) => json!(n),
        Value::String(text) => json!(text),
        Value::Symbol(symbol) => json!(symbol.0),
        Value::List(items) => items.iter().map(plain).collect(),
        Value::Map(map) => Json::Object(
            map.iter()
                .map(|(key, value)| (plain(key).as_str().unwrap().to_owned(), plain(value)))
                .collect(),
        ),
        _ => Json::Null,
    }
}
