//! What is wiped when it goes?
//!
//! Whatever of ours holds a Secret's bytes: what was read, what is made, and what is about to be sent. Out of our reach
//! are the buffers in which the HTTP client holds a request and an answer.

use std::ops::{Deref, DerefMut};

use json_patch::PatchOperation;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DynamicObject, Patch};
use serde_json::Value;
use zeroize::Zeroize;

/// Wiped when it goes.
pub(crate) struct Wiped<T: Wipe>(T);

/// What may hold a Secret's bytes.
pub(crate) trait Wipe {
    /// Overwrites them.
    fn wipe(&mut self);
}

impl<T: Wipe> From<T> for Wiped<T> {
    fn from(content: T) -> Self {
        Self(content)
    }
}

impl<T: Wipe> Deref for Wiped<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Wipe> DerefMut for Wiped<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: Wipe> Drop for Wiped<T> {
    fn drop(&mut self) {
        self.0.wipe();
    }
}

impl Wipe for Secret {
    fn wipe(&mut self) {
        self.metadata.wipe();
        let data = self.data.iter_mut().flat_map(|data| data.values_mut());
        data.for_each(|bytes| bytes.0.zeroize());
        let texts = self
            .string_data
            .iter_mut()
            .flat_map(|data| data.values_mut());
        texts.for_each(Zeroize::zeroize);
    }
}

/// Tools keep copies of what they applied in annotations.
impl Wipe for ObjectMeta {
    fn wipe(&mut self) {
        let annotations = self.annotations.iter_mut().flat_map(|map| map.values_mut());
        annotations.for_each(Zeroize::zeroize);
    }
}

impl Wipe for DynamicObject {
    fn wipe(&mut self) {
        self.metadata.wipe();
        self.data.wipe();
    }
}

impl Wipe for Value {
    fn wipe(&mut self) {
        match self {
            Self::String(text) => text.zeroize(),
            Self::Array(values) => values.iter_mut().for_each(Wipe::wipe),
            Self::Object(values) => values.values_mut().for_each(Wipe::wipe),
            Self::Null | Self::Bool(_) | Self::Number(_) => {}
        }
    }
}

impl Wipe for json_patch::Patch {
    fn wipe(&mut self) {
        for change in &mut self.0 {
            match change {
                PatchOperation::Add(change) => change.value.wipe(),
                PatchOperation::Replace(change) => change.value.wipe(),
                PatchOperation::Test(change) => change.value.wipe(),
                PatchOperation::Remove(_) | PatchOperation::Move(_) | PatchOperation::Copy(_) => {}
            }
        }
    }
}

/// A JSON patch as the client takes it.
impl Wipe for Patch<()> {
    fn wipe(&mut self) {
        if let Self::Json(patch) = self {
            patch.wipe();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::Serialize;
    use serde_json::json;

    use super::*;

    fn wiped<T: Wipe + Serialize>(mut content: T) -> String {
        let text = |content: &T| serde_json::to_string(content).unwrap();
        assert!(text(&content).contains("a2V5"));
        content.wipe();
        text(&content)
    }

    #[test]
    fn nothing_of_a_secret_is_left() {
        let object = json!({
            "metadata": {"name": "a", "annotations": {"last": "{\"tls.key\": \"a2V5\"}"}},
            "data": {"tls.key": "a2V5", "list": ["a2V5"]},
        });
        let secret = json!({
            "metadata": object["metadata"], "data": {"tls.key": "a2V5"}, "stringData": {"b": "a2V5"},
        });
        let patch: json_patch::Patch = serde_json::from_value(json!([
            {"op": "add", "path": "/data", "value": object["data"]},
            {"op": "replace", "path": "/data/b", "value": "a2V5"},
            {"op": "test", "path": "/data/b", "value": "a2V5"},
        ]))
        .unwrap();
        let secret: Secret = serde_json::from_value(secret).unwrap();
        let dynamic: DynamicObject = serde_json::from_value(object.clone()).unwrap();
        for left in [wiped(secret), wiped(dynamic), wiped(object), wiped(patch)] {
            assert!(!left.contains("a2V5"), "{left}");
        }
    }
}
