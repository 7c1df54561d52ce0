//! Which entity types and attributes does the router know, and what becomes of a value?

use std::collections::BTreeMap;

use fe2o3_amqp::types::primitives::Value;

use crate::fault::Fault;

mod types;

pub(crate) use types::LOG_MODULES;

/// Attributes of one entity, in the router's own types.
pub(crate) type Attributes = BTreeMap<String, Value>;

/// Type names on the wire start with this; requests may leave it out.
pub(crate) const PREFIX: &str = "io.skupper.router.";

/// One type of entity.
#[derive(Debug)]
pub(crate) struct EntityType {
    /// The name without its prefix.
    pub(crate) name: &'static str,
    /// `READ` aside, which every type has.
    pub(crate) operations: &'static [&'static str],
    attributes: &'static [Attribute],
}

/// One attribute, beside `name`, `identity` and `type`, which every entity has.
#[derive(Debug)]
pub(crate) struct Attribute {
    pub(crate) name: &'static str,
    kind: Kind,
    missing: Missing,
    create: bool,
    update: bool,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Text,
    Integer,
    Boolean,
    Choice(&'static [&'static str]),
    List,
    Map,
}

/// What stands in for an attribute that is not given.
#[derive(Debug, Clone, Copy)]
enum Missing {
    Null,
    Fault,
    Text(&'static str),
    Integer(i32),
    Boolean(bool),
}

/// An attribute that CREATE may set.
const fn given(name: &'static str, kind: Kind) -> Attribute {
    Attribute {
        name,
        kind,
        missing: Missing::Null,
        create: true,
        update: false,
    }
}

/// An attribute that only the router itself sets.
const fn shown(name: &'static str, kind: Kind) -> Attribute {
    Attribute {
        name,
        kind,
        missing: Missing::Null,
        create: false,
        update: false,
    }
}

impl Attribute {
    const fn text(mut self, default: &'static str) -> Self {
        self.missing = Missing::Text(default);
        self
    }

    const fn integer(mut self, default: i32) -> Self {
        self.missing = Missing::Integer(default);
        self
    }

    const fn boolean(mut self, default: bool) -> Self {
        self.missing = Missing::Boolean(default);
        self
    }

    const fn required(mut self) -> Self {
        self.missing = Missing::Fault;
        self
    }

    const fn updatable(mut self) -> Self {
        self.update = true;
        self
    }
}

/// The type of this name, with or without prefix.
pub(crate) fn entity_type(name: &str) -> Result<&'static EntityType, Fault> {
    let short = name.strip_prefix(PREFIX).unwrap_or(name);
    types::ALL
        .iter()
        .find(|kind| kind.name == short)
        .ok_or_else(|| Fault::validation(format!("No such entity type '{name}'")))
}

impl EntityType {
    /// The name as it stands in replies.
    pub(crate) fn long_name(&self) -> String {
        format!("{PREFIX}{}", self.name)
    }

    /// The name as it begins an identity.
    pub(crate) fn identity_prefix(&self) -> &'static str {
        self.name
            .strip_prefix("router.config.")
            .unwrap_or(self.name)
    }

    /// All attribute names, in the order of a QUERY that names none.
    pub(crate) fn attribute_names(&self) -> impl Iterator<Item = &'static str> {
        self.attributes
            .iter()
            .map(|a| a.name)
            .chain(["name", "identity", "type"])
    }

    fn attribute(&self, name: &str) -> Result<Option<&'static Attribute>, Fault> {
        if matches!(name, "name" | "identity" | "type") {
            return Ok(None);
        }
        self.attributes
            .iter()
            .find(|a| a.name == name)
            .map(Some)
            .ok_or_else(|| {
                Fault::validation(format!(
                    "Unknown attribute '{name}' for '{}'",
                    self.long_name()
                ))
            })
    }

    /// May this type be asked for `operation`, in capitals?
    pub(crate) fn check_operation(&self, operation: &str) -> Result<(), Fault> {
        if operation == "READ" || self.operations.contains(&operation) {
            return Ok(());
        }
        let known: Vec<String> = self
            .operations
            .iter()
            .chain(&["READ"])
            .map(|name| format!("'{name}'"))
            .collect();
        Err(Fault::not_implemented(format!(
            "Operation '{operation}' not implemented for '{}' [{}]",
            self.long_name(),
            known.join(", ")
        )))
    }

    /// May CREATE set these?
    pub(crate) fn check_create(&self, attributes: &Attributes) -> Result<(), Fault> {
        for name in attributes.keys() {
            let forbidden = self
                .attribute(name)?
                .map_or(name == "identity", |attribute| !attribute.create);
            if forbidden {
                return Err(Fault::validation(format!(
                    "Cannot set attribute '{name}' in CREATE"
                )));
            }
        }
        Ok(())
    }

    /// May UPDATE turn `old` into `new`? What does not change may always be named.
    pub(crate) fn check_update(&self, new: &Attributes, old: &Attributes) -> Result<(), Fault> {
        for (name, value) in new {
            let updatable = self
                .attribute(name)?
                .is_some_and(|attribute| attribute.update);
            if !updatable && old.get(name) != Some(value) {
                return Err(Fault::validation(format!(
                    "Cannot update attribute '{name}' in UPDATE"
                )));
            }
        }
        Ok(())
    }

    /// Fills in defaults and turns every value into the router's own type.
    pub(crate) fn normalise(&self, attributes: &mut Attributes) -> Result<(), Fault> {
        let named = |fault: Fault| {
            Fault::validation(format!("{}: {}", self.long_name(), fault.description()))
        };
        attributes.retain(|_, value| *value != Value::Null);
        for name in attributes.keys() {
            self.attribute(name).map_err(named)?;
        }
        for attribute in self.attributes {
            let value = match attributes.remove(attribute.name) {
                Some(value) => attribute.kind.convert(value).map_err(named)?,
                None => attribute.missing_value().map_err(named)?,
            };
            if value != Value::Null {
                attributes.insert(attribute.name.to_owned(), value);
            }
        }
        for name in ["name", "identity"] {
            if let Some(value) = attributes.remove(name) {
                attributes.insert(name.to_owned(), Kind::Text.convert(value).map_err(named)?);
            }
        }
        attributes.insert("type".to_owned(), Value::String(self.long_name()));
        Ok(())
    }
}

impl Attribute {
    fn missing_value(&self) -> Result<Value, Fault> {
        Ok(match self.missing {
            Missing::Null => Value::Null,
            Missing::Text(text) => Value::String(text.to_owned()),
            Missing::Integer(number) => Value::Int(number),
            Missing::Boolean(is_set) => Value::Bool(is_set),
            Missing::Fault => {
                return Err(Fault::validation(format!(
                    "Missing required attribute '{}'",
                    self.name
                )));
            }
        })
    }
}

impl Kind {
    /// As lenient as the real agent: numbers as text, text as numbers, `yes` and `no`.
    fn convert(self, value: Value) -> Result<Value, Fault> {
        match self {
            Self::Text => Ok(Value::String(text(&value))),
            Self::Integer => integer(&value).map(shortest),
            Self::Boolean => boolean(&value).map(Value::Bool),
            Self::Choice(tags) => choice(tags, &value),
            Self::List | Self::Map => Ok(value),
        }
    }
}

/// A value as text, the way the agent's language prints it.
pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Symbol(symbol) => symbol.0.clone(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Null => "None".to_owned(),
        other => number(other).map_or_else(|| format!("{other:?}"), |n| n.to_string()),
    }
}

/// Any of the integer types of AMQP.
pub(crate) fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Ubyte(n) => Some((*n).into()),
        Value::Ushort(n) => Some((*n).into()),
        Value::Uint(n) => Some((*n).into()),
        Value::Ulong(n) => i64::try_from(*n).ok(),
        Value::Byte(n) => Some((*n).into()),
        Value::Short(n) => Some((*n).into()),
        Value::Int(n) => Some((*n).into()),
        Value::Long(n) => Some(*n),
        _ => None,
    }
}

fn integer(value: &Value) -> Result<i64, Fault> {
    let parsed = match value {
        Value::Bool(is_set) => Some((*is_set).into()),
        Value::String(text) => text.trim().parse().ok(),
        other => number(other),
    };
    parsed.ok_or_else(|| {
        Fault::validation(format!(
            "invalid literal for int() with base 10: '{}'",
            text(value)
        ))
    })
}

/// Integers go out as `int` where they fit and as `long` where they do not.
fn shortest(number: i64) -> Value {
    i32::try_from(number).map_or(Value::Long(number), Value::Int)
}

fn boolean(value: &Value) -> Result<bool, Fault> {
    match value {
        Value::Bool(is_set) => Ok(*is_set),
        Value::String(word) => match word.to_lowercase().as_str() {
            "yes" | "true" | "on" => Ok(true),
            "no" | "false" | "off" => Ok(false),
            _ => Err(Fault::validation(format!(
                "Invalid Boolean value ''{word}''"
            ))),
        },
        other => Ok(number(other) != Some(0)),
    }
}

fn choice(tags: &[&str], value: &Value) -> Result<Value, Fault> {
    let given = text(value);
    let by_index = || {
        given
            .parse::<usize>()
            .ok()
            .and_then(|index| tags.get(index))
    };
    tags.iter()
        .find(|tag| **tag == given)
        .or_else(by_index)
        .map(|tag| Value::String((*tag).to_owned()))
        .ok_or_else(|| Fault::validation(format!("Invalid value for enum{tags:?}: '{given}'")))
}
