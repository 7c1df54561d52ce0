//! How does one odd object fail to stop a list?

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::Resource;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::labels;

/// What the print of an odd object has in the place of its spec, in front of what is wrong with it.
const UNFIT: &str = "does not fit: ";

/// One object as the API server has it: of its type, or odd.
///
/// Every kind of ours is read through this wrapper. An absent or null `spec` becomes `{}`; an object that does not
/// fit its type even so keeps its metadata and says what is wrong with the rest.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen<K> {
    /// It fits.
    Fits(K),
    /// It does not.
    Odd(Box<Odd>),
}

/// An object that does not fit its type.
#[derive(Clone, Debug, PartialEq)]
pub struct Odd {
    /// The object's metadata.
    pub metadata: ObjectMeta,
    /// The object's status, whatever it is.
    pub status: Value,
    /// What does not fit, and where.
    pub error: String,
}

impl<K> Seen<K> {
    /// The object, where it fits.
    pub fn fits(&self) -> Option<&K> {
        match self {
            Self::Fits(object) => Some(object),
            Self::Odd(_) => None,
        }
    }
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Seen<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut value = Value::deserialize(deserializer)?;
        if let Some(object) = value.as_object_mut() {
            let spec = object.entry("spec").or_insert(Value::Null);
            if spec.is_null() {
                *spec = Value::Object(Map::new());
            }
        }
        let error = match K::deserialize(&value) {
            Ok(object) => return Ok(Self::Fits(object)),
            Err(error) => misfit(&error.to_string()),
        };
        let printed = value["spec"]
            .as_str()
            .and_then(|spec| spec.strip_prefix(UNFIT));
        let error = printed.map_or(error, str::to_owned);
        let metadata = value.get("metadata").cloned().unwrap_or_default();
        Ok(Self::Odd(Box::new(Odd {
            metadata: serde_json::from_value(metadata).map_err(serde::de::Error::custom)?,
            status: without_code(value.get("status").cloned().unwrap_or_default()),
            error,
        })))
    }
}

/// A status in which a code is only said to be there.
fn without_code(mut status: Value) -> Value {
    if let Some(code) = status.get_mut("code") {
        *code = Value::from(labels::PRESENT);
    }
    status
}

/// What does not fit, without the value that does not: it may be a code.
fn misfit(error: &str) -> String {
    if error.starts_with("missing field") || error.starts_with("invalid length") {
        return error.to_owned();
    }
    match error.rsplit_once("expected ") {
        Some((_, expected)) => format!("a field is not {expected}"),
        None => "a field has a value of another form".to_owned(),
    }
}

impl<K: Serialize> Serialize for Seen<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Fits(object) => object.serialize(serializer),
            // An odd spec does not fit again: the print of a World says the same as the World.
            Self::Odd(odd) => serde_json::json!({
                "metadata": odd.metadata, "status": odd.status, "spec": format!("{UNFIT}{}", odd.error),
            })
            .serialize(serializer),
        }
    }
}

impl<K: Resource<DynamicType = ()>> Resource for Seen<K> {
    type DynamicType = ();
    type Scope = K::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        K::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        K::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        K::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        K::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        match self {
            Self::Fits(object) => object.meta(),
            Self::Odd(odd) => &odd.metadata,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match self {
            Self::Fits(object) => object.meta_mut(),
            Self::Odd(odd) => &mut odd.metadata,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spanwire_api::AccessGrant;

    #[test]
    fn an_odd_grant_prints_without_its_code() {
        let odd: Seen<AccessGrant> = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "a"}, "spec": {"code": 1_234_567}, "status": {"code": "hunter2"},
        }))
        .unwrap();
        assert!(odd.fits().is_none());
        let printed = format!("{odd:?}{}", serde_json::to_string(&odd).unwrap());
        assert!(
            !printed.contains("1234567") && !printed.contains("hunter2"),
            "{printed}"
        );
    }
}
