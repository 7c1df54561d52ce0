//! How is one attribute read, whichever way it was written?
//!
//! The router takes a port as a number or as text and booleans as words, and answers in types of
//! its own (`facts/router.md` §3); upstream writes some numbers as text. Each reader here accepts
//! every spelling, so that two spellings of one value are one value.

use serde::de::{self, Deserializer, Visitor};
use serde_json::Value;
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

/// A number that may be written as text.
struct Number<T>(PhantomData<T>);

impl<T: FromStr + TryFrom<u64>> Visitor<'_> for Number<T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number, or text that holds one")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Self::Value, E> {
        T::try_from(value)
            .map(Some)
            .map_err(|_| E::custom(format!("{value} is out of range")))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Self::Value, E> {
        let unsigned = u64::try_from(value).map_err(|_| E::custom("a negative number"))?;
        self.visit_u64(unsigned)
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Self::Value, E> {
        value
            .parse()
            .map(Some)
            .map_err(|_| E::custom(format!("{value:?} is not a number in range")))
    }
}

/// Text that may be written as a number or a boolean.
struct Text;

impl Visitor<'_> for Text {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text, a number or a boolean")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Self::Value, E> {
        Ok(Some(value.to_string()))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Self::Value, E> {
        Ok(Some(value.to_string()))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Self::Value, E> {
        Ok(Some(value.to_string()))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Self::Value, E> {
        Ok(Some(value.to_owned()))
    }
}

/// A boolean that may be written as a word.
struct Flag;

impl Visitor<'_> for Flag {
    type Value = Option<bool>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a boolean, or one of true, false, yes, no, on, off")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Self::Value, E> {
        Ok(Some(value))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Self::Value, E> {
        let flag = word(value);
        flag.map(Some)
            .ok_or_else(|| E::custom(format!("{value:?} is not a boolean")))
    }
}

/// What a word says that stands for a boolean.
fn word(word: &str) -> Option<bool> {
    match word.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Some(true),
        "false" | "no" | "off" | "0" => Some(false),
        _ => None,
    }
}

/// A boolean, however it is written.
pub(crate) fn flag_of(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(flag) => Some(*flag),
        Value::String(text) => word(text),
        _ => None,
    }
}

/// A port, which must be there.
pub(crate) fn port<'de, D: Deserializer<'de>>(input: D) -> Result<u16, D::Error> {
    input
        .deserialize_any(Number(PhantomData))?
        .ok_or_else(|| de::Error::custom("the port is null"))
}

/// A number, if there is one.
pub(crate) fn number<'de, D, T>(input: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr + TryFrom<u64>,
{
    input.deserialize_any(Number(PhantomData))
}

/// Text, if there is some.
pub(crate) fn text<'de, D: Deserializer<'de>>(input: D) -> Result<Option<String>, D::Error> {
    input.deserialize_any(Text)
}

/// A boolean, if there is one.
pub(crate) fn flag<'de, D: Deserializer<'de>>(input: D) -> Result<Option<bool>, D::Error> {
    input.deserialize_any(Flag)
}

/// A port in the spelling that upstream gives to connectors: text.
#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the shape that serde asks for"
)]
pub(crate) fn port_as_text<S: serde::Serializer>(port: &u16, output: S) -> Result<S::Ok, S::Error> {
    output.collect_str(port)
}
