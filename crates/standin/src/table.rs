//! How do entities, connections and nodes look in the body of a reply?

use fe2o3_amqp::types::primitives::{OrderedMap, Value};

use crate::agent::Request;
use crate::connection::COLUMNS;
use crate::fault::Fault;
use crate::router::Router;
use crate::schema::{Attributes, EntityType, text};

/// The body as a map. What is not a map ends in the exception that the real agent runs into when it
/// calls `method` on it.
pub(crate) fn body_map(body: &Value, method: &str) -> Result<Attributes, Fault> {
    let wrong = |what: &str| {
        Fault::internal(
            "AttributeError",
            format!("'{what}' object has no attribute '{method}'"),
        )
    };
    match body {
        Value::Map(map) => Ok(map
            .iter()
            .map(|(key, value)| (text(key), value.clone()))
            .collect()),
        Value::Null => Err(wrong("NoneType")),
        Value::List(_) => Err(wrong("list")),
        _ => Err(wrong("str")),
    }
}

pub(crate) fn map(attributes: Attributes) -> Value {
    Value::Map(
        attributes
            .into_iter()
            .map(|(name, value)| (Value::String(name), value))
            .collect(),
    )
}

pub(crate) fn empty() -> Value {
    Value::Map(OrderedMap::new())
}

/// The names that a QUERY asks for; none means all.
fn asked(body: &Attributes) -> Vec<String> {
    match body.get("attributeNames") {
        Some(Value::List(names)) => names.iter().map(text).collect(),
        Some(Value::Array(names)) => names.0.iter().map(text).collect(),
        _ => Vec::new(),
    }
}

fn table(names: Vec<String>, rows: impl Iterator<Item = Vec<Value>>) -> Value {
    let rows = rows.map(Value::List).collect();
    map(Attributes::from([
        (
            "attributeNames".to_owned(),
            Value::List(names.into_iter().map(Value::String).collect()),
        ),
        ("results".to_owned(), Value::List(rows)),
    ]))
}

fn columns(row: &Attributes, names: &[String]) -> Vec<Value> {
    names
        .iter()
        .map(|name| row.get(name).cloned().unwrap_or_default())
        .collect()
}

/// A QUERY as the Python agent answers it: the body must be a map, unknown names are refused.
pub(crate) fn entities(
    kind: &EntityType,
    rows: &[Attributes],
    request: &Request,
) -> Result<Value, Fault> {
    let known: Vec<String> = kind.attribute_names().map(str::to_owned).collect();
    let mut names = asked(&body_map(&request.body, "get")?);
    let unknown: Vec<&String> = names.iter().filter(|name| !known.contains(name)).collect();
    if !unknown.is_empty() {
        let kind = kind.long_name();
        return Err(Fault::not_found(format!(
            "Unknown attributes {unknown:?} for type {kind}."
        )));
    }
    if names.is_empty() {
        names = known;
    }
    let rows: Vec<Vec<Value>> = rows
        .iter()
        .map(|row| columns(row, &names))
        .filter(|row| row.iter().any(|value| *value != Value::Null))
        .collect();
    Ok(table(names, rows.into_iter()))
}

/// A QUERY as the core answers it: any body will do, unknown names are null, pages are honoured.
pub(crate) fn connections(router: &Router, request: &Request) -> Value {
    let mut names = body_map(&request.body, "get")
        .map(|body| asked(&body))
        .unwrap_or_default();
    if names.is_empty() {
        names = COLUMNS.split(' ').map(str::to_owned).collect();
    }
    let rows: Vec<Vec<Value>> = router
        .links
        .rows()
        .iter()
        .skip(request.offset)
        .take(request.count.unwrap_or(usize::MAX))
        .map(|row| columns(row, &names))
        .collect();
    table(names, rows.into_iter())
}

/// READ of a connection goes by identity only.
pub(crate) fn connection(router: &Router, request: &Request) -> Result<Value, Fault> {
    if request.name.is_some() {
        return Err(Fault::bad_request("Name not supported. Identity required"));
    }
    let identity = request.identity.clone().map(Value::String);
    router
        .links
        .rows()
        .into_iter()
        .find(|row| row.get("identity") == identity.as_ref())
        .map(map)
        .ok_or_else(|| Fault::not_found("Not Found"))
}

/// Our own node, with the neighbours that are there now, and a node for each router heard of
/// lately, whether it is there or not. An edge router has none.
pub(crate) fn nodes(router: &Router) -> Vec<Attributes> {
    if router.mode == "edge" {
        return Vec::new();
    }
    let neighbours = router.links.neighbours();
    let node = |id: &str, neighbours: Vec<String>, rest: [(&str, Value); 4]| {
        let identity = Value::String(format!("router.node/{id}"));
        let fixed = [
            ("id", Value::String(id.to_owned())),
            ("protocolVersion", Value::Int(1)),
            ("instance", Value::Int(1)),
            (
                "linkState",
                Value::List(neighbours.into_iter().map(Value::String).collect()),
            ),
            ("validOrigins", Value::List(Vec::new())),
            ("address", Value::String(format!("amqp:/_topo/0/{id}"))),
            ("index", Value::Int(0)),
            ("name", identity.clone()),
            ("identity", identity),
            (
                "type",
                Value::String("io.skupper.router.router.node".to_owned()),
            ),
        ];
        fixed
            .into_iter()
            .chain(rest)
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    };
    let own = node(
        &router.id,
        neighbours.clone(),
        [
            ("nextHop", Value::String("(self)".to_owned())),
            ("routerLink", Value::Null),
            ("cost", Value::Null),
            ("lastTopoChange", Value::Int(0)),
        ],
    );
    let others = router.links.nodes().into_iter().map(|id| {
        let is_there = neighbours.contains(&id);
        node(
            &id,
            vec![router.id.clone()],
            [
                ("nextHop", Value::Null),
                (
                    "routerLink",
                    if is_there { Value::Int(0) } else { Value::Null },
                ),
                ("cost", Value::Int(1)),
                ("lastTopoChange", Value::Null),
            ],
        )
    });
    std::iter::once(own).chain(others).collect()
}
