//! How is a router asked, and what did it answer?
//!
//! AMQP management over one connection, one request at a time (`facts/router.md` §3, §9): requests
//! to `$management`, replies to an address that the router makes up for us, matched by a
//! correlation id that must be text. Only the reply's status code is believed. A request without an
//! answer leaves the connection in doubt, so it is given up: whoever comes next connects anew.

use crate::error::AskRouter;
use fe2o3_amqp::connection::ConnectionHandle;
use fe2o3_amqp::link::delivery::Sendable;
use fe2o3_amqp::session::SessionHandle;
use fe2o3_amqp::types::messaging::{
    AmqpValue, ApplicationProperties, Body, Message, MessageId, Properties, Source,
};
use fe2o3_amqp::types::primitives::{OrderedMap, SimpleValue, Value};
use fe2o3_amqp::{Connection, Receiver, Sender, Session};
use serde_json::Value as Json;
use spanwire_router::diff::Change;
use spanwire_router::entity::{Entity, EntityId, EntityType, SslProfile};
use std::fmt::Display;
use std::future::Future;
use std::net::Shutdown;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A request, a connection attempt or a reply takes no longer …
const DEADLINE: Duration = Duration::from_secs(5);

/// … but for each user of a profile that is changed: the router loads its files for one after the
/// other, in 30 to 45 ms (`facts/router.md` §3).
const USER: Duration = Duration::from_millis(150);

/// We and the router tell each other that we live at least this often.
const IDLE: u32 = 10_000;

/// The largest reply, in bytes. Some 500 entities with all attributes make 150 kB.
const MAX_REPLY: u64 = 8 * 1024 * 1024;

/// The most rows and columns in a reply.
const MAX_ENTRIES: usize = 100_000;

/// The rows on a page.
pub(crate) const PAGE: i32 = 256;

/// The attributes of one entity, as JSON. The router's own types are kept as far as JSON has them.
pub(crate) type Row = serde_json::Map<String, Json>;

/// A connection to a router's management. Dropping it closes it at once: a router that does not
/// answer would not answer a farewell either.
pub(crate) struct Management {
    _socket: Socket,
    connection: ConnectionHandle<()>,
    /// Held: dropping it ends the session.
    _session: SessionHandle<()>,
    sender: Sender,
    receiver: Receiver,
    reply_to: String,
    requests: u64,
}

impl Management {
    /// Connects without TLS or SASL: the listener is on loopback, and the router lets such a client
    /// in.
    ///
    /// # Errors
    /// [`AskRouter::Connect`] or [`AskRouter::Await`].
    pub(crate) async fn connect(address: &str) -> Result<Self, AskRouter> {
        within(DEADLINE, Box::pin(Self::open(address))).await
    }

    async fn open(address: &str) -> Result<Self, AskRouter> {
        let stream = TcpStream::connect(address).await.map_err(lost)?;
        stream.set_nodelay(true).map_err(lost)?;
        let stream = stream.into_std().map_err(lost)?;
        let socket = Socket(stream.try_clone().map_err(lost)?);
        let stream = TcpStream::from_std(stream).map_err(lost)?;
        let mut connection = Connection::builder()
            .container_id("spanwire-adaptor")
            .scheme("amqp")
            .idle_time_out(IDLE)
            .open_with_stream(stream)
            .await
            .map_err(lost)?;
        let mut session = Session::begin(&mut connection).await.map_err(lost)?;
        let receiver = Receiver::builder()
            .name("replies")
            .source(Source::builder().dynamic(true).build())
            .max_message_size(MAX_REPLY)
            .auto_accept(true)
            .attach(&mut session)
            .await
            .map_err(lost)?;
        let reply_to = receiver
            .source()
            .as_ref()
            .and_then(|source| source.address.clone());
        let reply_to = reply_to.ok_or_else(|| malformed("it made no reply address"))?;
        let sender = Sender::attach(&mut session, "requests", "$management")
            .await
            .map_err(lost)?;
        Ok(Self {
            _socket: socket,
            connection,
            _session: session,
            sender,
            receiver,
            reply_to,
            requests: 0,
        })
    }

    /// Returns when the connection is lost. May be dropped and called again.
    pub(crate) async fn lost(&mut self) -> AskRouter {
        match self.connection.on_close().await {
            Ok(()) => AskRouter::Connect("the router closed it".to_owned()),
            Err(error) => lost(error),
        }
    }

    /// All entities of a type; without `attributes`, with all of theirs.
    ///
    /// # Errors
    /// See [`AskRouter`].
    pub(crate) async fn query(
        &mut self,
        management_name: &str,
        attributes: &[&str],
    ) -> Result<Rows, AskRouter> {
        let properties = [
            ("operation", "QUERY".into()),
            ("entityType", management_name.into()),
        ];
        Rows::read(self.ask(&properties, columns(attributes)).await?)
    }

    /// A page of the entities of a type, for types whose number follows the traffic. Only those
    /// that the router keeps in C heed this (`facts/router.md` §3); another gives all of them,
    /// whatever the page.
    ///
    /// # Errors
    /// See [`AskRouter`].
    pub(crate) async fn query_page(
        &mut self,
        management_name: &str,
        attributes: &[&str],
        page: i32,
    ) -> Result<Rows, AskRouter> {
        let properties = [
            ("operation", "QUERY".into()),
            ("entityType", management_name.into()),
            ("offset", page.saturating_mul(PAGE).into()),
            ("count", PAGE.into()),
        ];
        Rows::read(self.ask(&properties, columns(attributes)).await?)
    }

    /// The attributes of one entity, if the router has it.
    ///
    /// # Errors
    /// See [`AskRouter`].
    pub(crate) async fn read(&mut self, id: &EntityId) -> Result<Option<Row>, AskRouter> {
        let properties = [
            ("operation", "READ".into()),
            ("type", id.entity_type.management_name().into()),
            ("name", id.name.as_str().into()),
        ];
        match self.ask(&properties, Value::Map(OrderedMap::new())).await {
            Ok(body) => row(body).map(Some),
            Err(AskRouter::Refuse { status: 404, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes one change; `users` are the entities that use what changes.
    ///
    /// # Errors
    /// [`AskRouter::Refuse`] if the router did not make it; anything else if that is not known.
    pub(crate) async fn change(&mut self, change: &Change, users: u32) -> Result<(), AskRouter> {
        let (operation, body) = match change {
            Change::Create(entity) => ("CREATE", attributes(entity)),
            Change::Update(profile) => ("UPDATE", update(profile)),
            Change::Delete(_) => ("DELETE", OrderedMap::new()),
        };
        let id = change.id();
        // The name must be among the properties: one that stands in the body alone is thrown away.
        let properties = [
            ("operation", operation.into()),
            ("type", id.entity_type.management_name().into()),
            ("name", id.name.as_str().into()),
        ];
        let deadline = DEADLINE + USER * users;
        within(
            deadline,
            Box::pin(self.request(&properties, Value::Map(body))),
        )
        .await
        .map(drop)
    }

    async fn ask(
        &mut self,
        properties: &[(&str, SimpleValue)],
        body: Value,
    ) -> Result<Value, AskRouter> {
        within(DEADLINE, Box::pin(self.request(properties, body))).await
    }

    async fn request(
        &mut self,
        properties: &[(&str, SimpleValue)],
        body: Value,
    ) -> Result<Value, AskRouter> {
        self.requests += 1;
        let id = MessageId::String(self.requests.to_string());
        let application = properties
            .iter()
            .fold(ApplicationProperties::builder(), |all, (name, value)| {
                all.insert(*name, value.clone())
            });
        let message = Message::builder()
            .properties(
                Properties::builder()
                    .correlation_id(id.clone())
                    .reply_to(self.reply_to.clone())
                    .build(),
            )
            .application_properties(application.build())
            .body(Body::Value(AmqpValue(body)))
            .build();
        // Settled from the start: the reply is the acknowledgement.
        let request = Sendable::builder().message(message).settled(true).build();
        self.sender.send(request).await.map_err(lost)?;
        loop {
            let delivery = self.receiver.recv::<Body<Value>>().await.map_err(|error| {
                use fe2o3_amqp::link::RecvError;
                match error {
                    RecvError::MessageDecode(_) | RecvError::MessageSizeExceeded(_) => {
                        AskRouter::ReadReply(error.to_string())
                    }
                    _ => lost(error),
                }
            })?;
            let reply = delivery.into_message();
            let correlation = reply
                .properties
                .as_ref()
                .and_then(|all| all.correlation_id.clone());
            if correlation == Some(id.clone()) {
                return answer(reply);
            }
        }
    }
}

/// The socket under a connection, closed when this is dropped, whatever still waits for it.
struct Socket(std::net::TcpStream);

impl Drop for Socket {
    fn drop(&mut self) {
        // Fails if the router closed it first.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

/// The body of a reply whose status says yes.
fn answer(reply: Message<Body<Value>>) -> Result<Value, AskRouter> {
    let properties = reply.application_properties.unwrap_or_default();
    let status = properties
        .get("statusCode")
        .and_then(|status| match status {
            SimpleValue::Int(code) => Some(i64::from(*code)),
            SimpleValue::Uint(code) => Some(i64::from(*code)),
            SimpleValue::Long(code) => Some(*code),
            SimpleValue::Ulong(code) => i64::try_from(*code).ok(),
            SimpleValue::Short(code) => Some(i64::from(*code)),
            SimpleValue::Ushort(code) => Some(i64::from(*code)),
            _ => None,
        });
    let Some(status) = status else {
        return Err(malformed("it has no status code"));
    };
    if !(200..300).contains(&status) {
        let description = match properties.get("statusDescription") {
            Some(SimpleValue::String(text)) => text.clone(),
            _ => "no reason was given".to_owned(),
        };
        return Err(AskRouter::Refuse {
            status,
            description,
        });
    }
    Ok(match reply.body {
        Body::Value(AmqpValue(value)) => value,
        Body::Data(_) | Body::Sequence(_) | Body::Empty => Value::Null,
    })
}

/// The body of a QUERY.
fn columns(names: &[&str]) -> Value {
    let names = names.iter().copied().map(Value::from).collect();
    let mut body = OrderedMap::new();
    body.insert(Value::from("attributeNames"), Value::List(names));
    Value::Map(body)
}

/// The rows of a QUERY's reply. Each is made when it is asked for: thousands of them would take many
/// times the room of the reply, or of the entities that they become.
pub(crate) struct Rows {
    names: Vec<String>,
    results: std::vec::IntoIter<Value>,
}

impl Rows {
    /// Reads a list of names, and a list of lists of values in the same order.
    fn read(body: Value) -> Result<Self, AskRouter> {
        let Value::Map(mut body) = body else {
            return Err(malformed("it holds no map"));
        };
        let mut list = |name: &str| match body.swap_remove(&Value::from(name)) {
            Some(Value::List(list)) if list.len() <= MAX_ENTRIES => Ok(list),
            Some(Value::List(_)) => Err(malformed("it has too many entries")),
            _ => Err(malformed("it lacks attributeNames or results")),
        };
        let names = list("attributeNames")?.into_iter().filter_map(text);
        let (names, results) = (names.collect::<Vec<_>>(), list("results")?);
        let fits = |row: &Value| matches!(row, Value::List(row) if row.len() == names.len());
        if !results.iter().all(fits) {
            return Err(malformed("a row does not fit its columns"));
        }
        Ok(Self {
            names,
            results: results.into_iter(),
        })
    }
}

impl Iterator for Rows {
    type Item = Row;

    fn next(&mut self) -> Option<Row> {
        let Value::List(values) = self.results.next()? else {
            return None;
        };
        let cells = self.names.iter().cloned().zip(values.into_iter().map(json));
        Some(cells.filter(|(_, value)| !value.is_null()).collect())
    }
}

/// The body of a READ's reply.
fn row(body: Value) -> Result<Row, AskRouter> {
    match json(body) {
        Json::Object(row) => Ok(row),
        _ => Err(malformed("it holds no map")),
    }
}

fn malformed(what: &str) -> AskRouter {
    AskRouter::ReadReply(what.to_owned())
}

/// The body of a CREATE.
fn attributes(entity: &Entity) -> OrderedMap<Value, Value> {
    let attributes = entity
        .attributes()
        .into_iter()
        .filter(|(name, _)| name != "name");
    attributes
        .map(|(name, value)| (Value::from(name.as_str()), amqp(value)))
        .collect()
}

/// The body of an UPDATE: what it does not name would stay.
fn update(profile: &SslProfile) -> OrderedMap<Value, Value> {
    let mut body = attributes(&Entity::SslProfile(profile.clone()));
    for name in [
        "caCertFile",
        "certFile",
        "privateKeyFile",
        "protocols",
        "ciphers",
    ] {
        if body.get(&Value::from(name)).is_none() {
            body.insert(Value::from(name), Value::Null);
        }
    }
    body
}

fn amqp(value: Json) -> Value {
    match value {
        Json::Null => Value::Null,
        Json::Bool(flag) => Value::Bool(flag),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::Long(number),
            (None, Some(number)) => Value::Ulong(number),
            (None, None) => Value::from(number.as_f64().unwrap_or_default()),
        },
        Json::String(text) => Value::String(text),
        Json::Array(list) => Value::List(list.into_iter().map(amqp).collect()),
        Json::Object(map) => Value::Map(
            map.into_iter()
                .map(|(name, value)| (Value::String(name), amqp(value)))
                .collect(),
        ),
    }
}

fn json(value: Value) -> Json {
    match value {
        Value::Bool(flag) => flag.into(),
        Value::Ubyte(number) => number.into(),
        Value::Ushort(number) => number.into(),
        Value::Uint(number) => number.into(),
        Value::Ulong(number) => number.into(),
        Value::Byte(number) => number.into(),
        Value::Short(number) => number.into(),
        Value::Int(number) => number.into(),
        Value::Long(number) => number.into(),
        Value::Float(number) => number.into_inner().into(),
        Value::Double(number) => number.into_inner().into(),
        Value::String(text) => text.into(),
        Value::Symbol(symbol) => symbol.as_str().into(),
        Value::List(list) => list.into_iter().map(json).collect(),
        Value::Map(map) => Json::Object(
            map.into_iter()
                .filter_map(|(name, value)| Some((text(name)?, json(value))))
                .collect(),
        ),
        // Nothing that is compared or shown has another type.
        _ => Json::Null,
    }
}

fn text(value: Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text),
        Value::Symbol(symbol) => Some(symbol.as_str().to_owned()),
        _ => None,
    }
}

fn lost(error: impl Display) -> AskRouter {
    AskRouter::Connect(error.to_string())
}

/// Boxed work: the AMQP library's futures have up to 20 kB.
async fn within<T>(
    deadline: Duration,
    work: impl Future<Output = Result<T, AskRouter>>,
) -> Result<T, AskRouter> {
    timeout(deadline, work)
        .await
        .unwrap_or(Err(AskRouter::Await(deadline)))
}

/// An entity as a router shows it. One that does not fit its type still occupies its name, and
/// equals nothing.
pub(crate) fn entity(entity_type: EntityType, row: Row) -> Option<Entity> {
    let name = row.get("name")?.clone();
    Entity::from_attributes(entity_type, row).ok().or_else(|| {
        let mut occupant = Row::new();
        occupant.insert("name".to_owned(), name);
        occupant.insert("host".to_owned(), "".into());
        occupant.insert("port".to_owned(), 0.into());
        Entity::from_attributes(entity_type, occupant).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn table(names: &[&str], results: Vec<Value>) -> Value {
        let mut body = OrderedMap::new();
        let names = names.iter().copied().map(Value::from).collect();
        body.insert(Value::from("attributeNames"), Value::List(names));
        body.insert(Value::from("results"), Value::List(results));
        Value::Map(body)
    }

    #[test]
    fn rows_are_read_by_their_columns_and_nulls_are_left_out() {
        let row = Value::List(vec![
            Value::from("west"),
            Value::Uint(1),
            Value::Null,
            Value::Bool(true),
        ]);
        let rows = Rows::read(table(
            &["name", "cost", "sslProfile", "verifyHostname"],
            vec![row],
        ))
        .unwrap();
        assert_eq!(
            json!(rows.collect::<Vec<_>>()),
            json!([{ "name": "west", "cost": 1, "verifyHostname": true }])
        );
    }

    #[test]
    fn what_is_no_table_is_refused() {
        let complaint = |body| Rows::read(body).err().unwrap().to_string();
        assert!(complaint(Value::Null).contains("it holds no map"));
        assert!(complaint(Value::Map(OrderedMap::new())).contains("it lacks attributeNames"));
        assert!(complaint(table(&["a"], vec![Value::List(Vec::new())])).contains("does not fit"));
        let many = vec![Value::Null; MAX_ENTRIES + 1];
        assert!(complaint(table(&["a"], many)).contains("too many entries"));
    }

    #[test]
    fn an_update_names_what_shall_be_absent() {
        let profile = SslProfile {
            name: "p".to_owned(),
            ca_cert_file: Some("/ca".to_owned()),
            ordinal: Some(2),
            ..SslProfile::default()
        };
        let body = update(&profile);
        let value = |name: &str| body.get(&Value::from(name)).cloned();
        assert_eq!(value("caCertFile"), Some(Value::from("/ca")));
        assert_eq!(value("certFile"), Some(Value::Null));
        assert_eq!(value("protocols"), Some(Value::Null));
        assert_eq!(value("ordinal"), Some(Value::Long(2)));
        assert_eq!(value("oldestValidOrdinal"), None);
        assert_eq!(value("name"), None);
    }

    #[test]
    fn an_entity_that_does_not_fit_its_type_still_has_its_name() {
        let row = |value: Json| match value {
            Json::Object(row) => row,
            other => panic!("{other}"),
        };
        let odd = row(json!({ "name": "a", "port": "amqp", "host": "h", "role": "king" }));
        for entity_type in [EntityType::Connector, EntityType::Listener] {
            assert_eq!(entity(entity_type, odd.clone()).unwrap().name(), Some("a"));
        }
        assert!(entity(EntityType::Connector, row(json!({ "port": 1 }))).is_none());
    }
}
