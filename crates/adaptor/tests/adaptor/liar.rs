//! What may a router answer that is no answer?

use fe2o3_amqp::acceptor::{ConnectionAcceptor, LinkAcceptor, LinkEndpoint, SessionAcceptor};
use fe2o3_amqp::types::messaging::{
    AmqpValue, ApplicationProperties, Body, Message, Properties, Source,
};
use fe2o3_amqp::types::primitives::{OrderedMap, SimpleValue, Value};
use fe2o3_amqp::{Receiver, Sender};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

/// What every question is answered with.
#[derive(Clone, Copy)]
pub(crate) enum Lie {
    /// A map of so many entries.
    Map(usize),
    /// A list of so many rows of nothing: a byte each.
    Rows(usize),
    /// Columns without rows to fit.
    Shape,
    /// No status code.
    NoStatus,
    /// A status code of 500.
    Refusal,
}

/// A router that lies.
pub(crate) struct Liar {
    pub(crate) address: String,
    runtime: Option<Runtime>,
}

impl Liar {
    pub(crate) fn start(lie: Lie) -> Self {
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // Each ends when the adaptor gives up.
                let _ = Box::pin(converse(stream, lie)).await;
            }
        });
        Self {
            address,
            runtime: Some(runtime),
        }
    }
}

impl Drop for Liar {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn converse(stream: TcpStream, lie: Lie) -> Option<()> {
    let mut connection = ConnectionAcceptor::new("liar").accept(stream).await.ok()?;
    let mut session = SessionAcceptor::new().accept(&mut connection).await.ok()?;
    let links = LinkAcceptor::builder()
        .on_dynamic_source(|mut source: Source| {
            source.address = Some("replies".to_owned());
            Some(source)
        })
        .build();
    let (mut answers, mut questions): (Option<Sender>, Option<Receiver>) = (None, None);
    while answers.is_none() || questions.is_none() {
        match links.accept(&mut session).await.ok()? {
            LinkEndpoint::Sender(sender) => answers = Some(sender),
            LinkEndpoint::Receiver(receiver) => questions = Some(receiver),
        }
    }
    let (mut answers, mut questions) = (answers?, questions?);
    loop {
        let question = questions.recv::<Body<Value>>().await.ok()?.into_message();
        let id = question.properties?.correlation_id?;
        answers
            .send(answer(lie).with(Properties::builder().correlation_id(id).build()))
            .await
            .ok()?;
    }
}

struct Answer {
    status: Option<i32>,
    body: Value,
}

impl Answer {
    fn with(self, properties: Properties) -> Message<Body<Value>> {
        let mut application = ApplicationProperties::builder();
        if let Some(status) = self.status {
            application = application.insert("statusCode", SimpleValue::Int(status));
        }
        Message::builder()
            .properties(properties)
            .application_properties(application.build())
            .body(Body::Value(AmqpValue(self.body)))
            .build()
    }
}

fn answer(lie: Lie) -> Answer {
    let table = |names: Vec<Value>, rows: Vec<Value>| {
        let mut body = OrderedMap::new();
        body.insert(Value::from("attributeNames"), Value::List(names));
        body.insert(Value::from("results"), Value::List(rows));
        Value::Map(body)
    };
    let empty = || table(Vec::new(), Vec::new());
    let (status, body) = match lie {
        Lie::Map(count) => {
            let entries = (0..count).map(|it| (Value::from(format!("attribute{it}")), Value::Null));
            (Some(200), Value::Map(entries.collect()))
        }
        Lie::Rows(count) => (Some(200), table(Vec::new(), vec![Value::Null; count])),
        Lie::Shape => (
            Some(200),
            table(vec![Value::from("name")], vec![Value::List(Vec::new())]),
        ),
        Lie::NoStatus => (None, empty()),
        Lie::Refusal => (Some(500), empty()),
    };
    Answer { status, body }
}
