//! How do fields that were written otherwise become removable by an apply?
//!
//! A POST leaves an `Update` entry in `managedFields`, and what the incumbent wrote is held by its own managers. A
//! field that such an entry holds survives an apply that no longer wants it. So before the first apply those entries
//! become one `Apply` entry of ours: one patch, under the resourceVersion.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry, ObjectMeta};
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};
use spanwire_plan::plan::Live;
use spanwire_plan::settle::{FIELD_MANAGER, needs_take_over};

use super::{CarryOut, guard};
use crate::error::{CallServer, within};

/// Takes the fields over; gives back the resourceVersion to go on with.
pub(super) async fn take_over(
    api: &Api<DynamicObject>,
    name: &str,
    live: &Live,
) -> Result<String, CarryOut> {
    let metadata = within(api.get_metadata(name)).await?.metadata;
    let is_planned = metadata.uid.as_ref() == Some(&live.uid)
        && metadata.resource_version.as_ref() == Some(&live.resource_version);
    if !is_planned {
        // The apply is refused as stale.
        return Ok(live.resource_version.clone());
    }
    let version = live.resource_version.clone();
    let Some(entries) = taken_over(&metadata) else {
        return Ok(version);
    };
    let patch = json!([
        guard(&version),
        {"op": "replace", "path": "/metadata/managedFields", "value": entries},
    ]);
    let patch: json_patch::Patch = serde_json::from_value(patch)
        .map_err(|error| CallServer::from(kube::Error::SerdeError(error)))?;
    let params = PatchParams::default();
    let patched = within(api.patch_metadata(name, &params, &Patch::<()>::Json(patch))).await?;
    Ok(patched.metadata.resource_version.unwrap_or_default())
}

/// The entries as they should be; absent where there is nothing to take over.
fn taken_over(metadata: &ObjectMeta) -> Option<Vec<ManagedFieldsEntry>> {
    if !needs_take_over(metadata) {
        return None;
    }
    let of_one = |entry: &ManagedFieldsEntry| ObjectMeta {
        managed_fields: Some(vec![entry.clone()]),
        ..ObjectMeta::default()
    };
    let is_ours = |entry: &ManagedFieldsEntry| {
        let of_status = entry
            .subresource
            .as_deref()
            .is_some_and(|part| !part.is_empty());
        needs_take_over(&of_one(entry))
            || !of_status
                && entry.manager.as_deref() == Some(FIELD_MANAGER)
                && entry.operation.as_deref() == Some("Apply")
    };
    let (ours, mut entries): (Vec<_>, Vec<_>) = metadata
        .managed_fields
        .iter()
        .flatten()
        .cloned()
        .partition(is_ours);
    let mut fields = json!({});
    for entry in &ours {
        merge(
            &mut fields,
            entry
                .fields_v1
                .as_ref()
                .map_or(&Value::Null, |fields| &fields.0),
        );
    }
    let newest = ours
        .into_iter()
        .max_by_key(|entry| entry.time.as_ref().map(|time| time.0))?;
    entries.push(ManagedFieldsEntry {
        manager: Some(FIELD_MANAGER.to_owned()),
        operation: Some("Apply".to_owned()),
        fields_v1: Some(FieldsV1(fields)),
        ..newest
    });
    Some(entries)
}

fn merge(into: &mut Value, fields: &Value) {
    let Some(fields) = fields.as_object() else {
        return;
    };
    for (key, below) in fields {
        match into.get_mut(key) {
            Some(known) => merge(known, below),
            None => into[key] = below.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(entries: &Value) -> ObjectMeta {
        serde_json::from_value(json!({"managedFields": entries})).unwrap()
    }

    #[test]
    fn update_entries_of_ours_and_the_incumbents_become_one_apply_entry() {
        let before = metadata(&json!([
            {"manager": "spanwire", "operation": "Update", "fieldsV1": {"f:spec": {"f:a": {}}}},
            {"manager": "skupper-controller", "operation": "Apply", "fieldsV1": {"f:spec": {"f:b": {}}}},
            {"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {"f:c": {}}}},
            {"manager": "spanwire", "operation": "Update", "subresource": "status", "fieldsV1": {}},
        ]));
        let after = taken_over(&before).unwrap();
        let ours: Vec<_> = after
            .iter()
            .filter(|entry| {
                entry.manager.as_deref() == Some("spanwire") && entry.subresource.is_none()
            })
            .collect();
        assert_eq!(after.len(), 3);
        assert_eq!(ours.len(), 1);
        assert_eq!(ours[0].operation.as_deref(), Some("Apply"));
        let fields = &ours[0].fields_v1.as_ref().unwrap().0;
        assert_eq!(fields, &json!({"f:spec": {"f:a": {}, "f:b": {}}}));
    }

    #[test]
    fn nothing_is_patched_where_nothing_has_to_be_taken_over() {
        let entries = json!([{"manager": "spanwire", "operation": "Apply", "fieldsV1": {}}]);
        assert_eq!(taken_over(&metadata(&entries)), None);
    }
}
