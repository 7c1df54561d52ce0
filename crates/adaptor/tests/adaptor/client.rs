//! What does the router itself say? Asked without any of the adaptor's code.

use fe2o3_amqp::link::delivery::Sendable;
use fe2o3_amqp::types::messaging::{
    AmqpValue, ApplicationProperties, Body, Message, Properties, Source,
};
use fe2o3_amqp::types::primitives::{OrderedMap, SimpleValue, Value};
use fe2o3_amqp::{Connection, Receiver, Sender, Session};
use std::collections::BTreeMap;
use tokio::runtime::Runtime;

/// The attributes of one entity as text; what is null is left out.
pub(crate) type Row = BTreeMap<String, String>;

/// All entities of a type.
pub(crate) fn query(address: &str, entity_type: &str) -> Vec<Row> {
    let properties = [("operation", "QUERY"), ("entityType", &full(entity_type))];
    let (status, body) = ask(address, &properties, &[]);
    assert_eq!(status, 200, "{body:?}");
    let Value::Map(body) = body else {
        panic!("{body:?}")
    };
    let list = |name: &str| match body.get(&Value::from(name)).unwrap() {
        Value::List(list) => list.clone(),
        other => panic!("{other:?}"),
    };
    let names: Vec<String> = list("attributeNames").iter().map(text).collect();
    let row = |row: &Value| {
        let Value::List(values) = row else {
            panic!("{row:?}")
        };
        let cells = names.iter().cloned().zip(values);
        cells
            .filter(|(_, value)| **value != Value::Null)
            .map(|(name, value)| (name, text(value)))
            .collect()
    };
    list("results").iter().map(row).collect()
}

/// The entity of this type and name, if there is one.
pub(crate) fn find(address: &str, entity_type: &str, name: &str) -> Option<Row> {
    query(address, entity_type)
        .into_iter()
        .find(|row| row.get("name").is_some_and(|it| it == name))
}

/// Creates an entity behind the adaptor's back; the status code.
pub(crate) fn create(address: &str, entity_type: &str, name: &str, body: &[(&str, &str)]) -> i32 {
    ask(
        address,
        &[
            ("operation", "CREATE"),
            ("type", &full(entity_type)),
            ("name", name),
        ],
        body,
    )
    .0
}

/// Deletes an entity behind the adaptor's back; the status code.
pub(crate) fn delete(address: &str, entity_type: &str, name: &str) -> i32 {
    ask(
        address,
        &[
            ("operation", "DELETE"),
            ("type", &full(entity_type)),
            ("name", name),
        ],
        &[],
    )
    .0
}

/// Open connections that a router dialled to a port, as (identity, tlsOrdinal), of the link itself
/// and not its data ones.
pub(crate) fn dialled(address: &str, port: u16) -> BTreeMap<String, String> {
    let host = format!("127.0.0.1:{port}");
    let is_link = |row: &Row| {
        row.get("host") == Some(&host) && row["opened"] == "true" && row["role"] == "inter-router"
    };
    let pair = |row: Row| {
        (
            row["identity"].clone(),
            row.get("tlsOrdinal").cloned().unwrap_or_default(),
        )
    };
    query(address, "connection")
        .into_iter()
        .filter(is_link)
        .map(pair)
        .collect()
}

fn full(entity_type: &str) -> String {
    format!("io.skupper.router.{entity_type}")
}

fn ask(address: &str, properties: &[(&str, &str)], body: &[(&str, &str)]) -> (i32, Value) {
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let url = format!("amqp://{address}");
        let mut connection = Connection::open("test", url.as_str()).await.unwrap();
        let mut session = Session::begin(&mut connection).await.unwrap();
        let source = Source::builder().dynamic(true).build();
        let receiver = Receiver::builder()
            .name("in")
            .source(source)
            .auto_accept(true);
        let mut receiver = receiver.attach(&mut session).await.unwrap();
        let reply_to = receiver.source().as_ref().unwrap().address.clone().unwrap();
        let mut sender = Sender::attach(&mut session, "out", "$management")
            .await
            .unwrap();
        let application = properties
            .iter()
            .fold(ApplicationProperties::builder(), |all, (name, value)| {
                all.insert(*name, SimpleValue::from(*value))
            });
        let pairs = body
            .iter()
            .map(|(name, value)| (Value::from(*name), Value::from(*value)));
        let body: OrderedMap<Value, Value> = pairs.collect();
        let message = Message::builder()
            .properties(
                Properties::builder()
                    .reply_to(reply_to)
                    .correlation_id("1".to_owned())
                    .build(),
            )
            .application_properties(application.build())
            .body(Body::Value(AmqpValue(Value::Map(body))))
            .build();
        sender
            .send(Sendable::builder().message(message).settled(true).build())
            .await
            .unwrap();
        let reply = receiver.recv::<Body<Value>>().await.unwrap().into_message();
        let status = match reply.application_properties.unwrap().get("statusCode") {
            Some(SimpleValue::Int(code)) => *code,
            other => panic!("{other:?}"),
        };
        let body = match reply.body {
            Body::Value(AmqpValue(value)) => value,
            _ => Value::Null,
        };
        connection.close().await.unwrap();
        (status, body)
    })
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Symbol(symbol) => symbol.as_str().to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Int(number) => number.to_string(),
        Value::Uint(number) => number.to_string(),
        Value::Long(number) => number.to_string(),
        Value::Ulong(number) => number.to_string(),
        other => format!("{other:?}"),
    }
}
