//! How do key bytes get from one Secret into another, and into the first?

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use serde_json::{Map, Value, json};
use spanwire_plan::facts::{CA_FILE, CERTIFICATE_FILE, KEY_FILE};
use spanwire_plan::labels;
use spanwire_plan::plan::{Child, Content, Issue, Live, ObjectKind, Source};
use spanwire_plan::settle::FIELD_MANAGER;

use super::{CarryOut, Workshop, guard, object, pointer};
use crate::error::within;
use crate::pki::{self, Credential, Signer};

impl Workshop {
    /// The child as an object, with its data: texts as they are, copies from their sources.
    pub(super) async fn filled(&self, child: &Child) -> Result<DynamicObject, CarryOut> {
        let mut object = object(child)?;
        if !child.data.is_empty() {
            object.data["data"] = Value::Object(self.data(child).await?);
        }
        Ok(object)
    }

    /// Writes a Secret that holds copies: a merge patch under its resourceVersion, which is five times faster than an
    /// apply of a full one (`facts/order.md` k).
    pub(super) async fn merge(&self, child: &Child, live: &Live) -> Result<(), CarryOut> {
        let mut data = self.data(child).await?;
        data.extend(live.surplus.iter().map(|key| (key.clone(), Value::Null)));
        let mut patch = child.object.clone();
        patch["metadata"]["uid"] = json!(live.uid);
        patch["metadata"]["resourceVersion"] = json!(live.resource_version);
        patch["data"] = Value::Object(data);
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let api = self.api(&child.reference());
        within(api.patch(child.name(), &params, &Patch::Merge(&patch))).await?;
        Ok(())
    }

    /// Makes a key pair and a certificate, and stores them: in a new Secret, or in place of the old data.
    pub(super) async fn issue(&self, order: &Issue) -> Result<(), CarryOut> {
        let child = &order.secret;
        let signer = match &order.signer {
            Some(source) => Some(self.signer(child.namespace(), source).await?),
            None => None,
        };
        let before = match &order.live {
            Some(live) if !order.legacy.is_empty() => {
                let own = Source {
                    secret: child.name().to_owned(),
                    uid: live.uid.clone(),
                    resource_version: live.resource_version.clone(),
                };
                Some(self.signer(child.namespace(), &own).await?)
            }
            _ => None,
        };
        let made = {
            let order = order.clone();
            let make = move || match before {
                Some(before) => pki::succeed(&order, signer.as_ref(), &before),
                None => pki::issue(&order, signer.as_ref()),
            };
            tokio::task::spawn_blocking(make).await??
        };
        let data = credential_data(&made);
        let child = &annotated(order, &made)?;
        let Some(live) = &order.live else {
            let mut object = object(child)?;
            object.data["data"] = data;
            return self.post(child, object).await;
        };
        let mut patch = vec![
            guard(&live.resource_version),
            json!({"op": "add", "path": "/data", "value": data}),
        ];
        let annotations = child
            .object
            .pointer("/metadata/annotations")
            .and_then(Value::as_object);
        for (key, value) in annotations.into_iter().flatten() {
            let at = format!("/metadata/annotations/{}", pointer(key));
            patch.push(json!({"op": "add", "path": at, "value": value}));
        }
        let patch: json_patch::Patch = serde_json::from_value(Value::Array(patch))
            .map_err(|error| crate::error::CallServer::from(kube::Error::SerdeError(error)))?;
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let api = self.api(&child.reference());
        within(api.patch(child.name(), &params, &Patch::<()>::Json(patch))).await?;
        Ok(())
    }

    /// The CA at the revision that the plan knew.
    async fn signer(&self, namespace: &str, source: &Source) -> Result<Signer, CarryOut> {
        Ok(Signer::from_secret(&self.source(namespace, source).await?)?)
    }

    async fn data(&self, child: &Child) -> Result<Map<String, Value>, CarryOut> {
        let mut sources: BTreeMap<&Source, Secret> = BTreeMap::new();
        for content in child.data.values() {
            if let Content::Copy(copied) = content
                && !sources.contains_key(&copied.from)
            {
                let secret = self.source(child.namespace(), &copied.from).await?;
                sources.insert(&copied.from, secret);
            }
        }
        let mut data = Map::new();
        for (key, content) in &child.data {
            let value = match content {
                Content::Text(text) if child.kind == ObjectKind::Secret => {
                    json!(ByteString(text.clone().into_bytes()))
                }
                Content::Text(text) => json!(text),
                Content::Copy(copied) => {
                    let source = sources
                        .get(&copied.from)
                        .and_then(|secret| secret.data.as_ref());
                    let bytes =
                        source
                            .and_then(|data| data.get(&copied.file))
                            .ok_or_else(|| CarryOut::CopyFile {
                                secret: copied.from.secret.clone(),
                                file: copied.file.clone(),
                            })?;
                    json!(bytes)
                }
            };
            data.insert(key.clone(), value);
        }
        Ok(data)
    }

    /// A Secret, refused when it is not the one that the plan knew.
    async fn source(&self, namespace: &str, source: &Source) -> Result<Secret, CarryOut> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let secret = within(api.get(&source.secret)).await?;
        let is_same = secret.metadata.uid.as_ref() == Some(&source.uid)
            && secret.metadata.resource_version.as_ref() == Some(&source.resource_version);
        if is_same {
            Ok(secret)
        } else {
            Err(CarryOut::CopySource(source.secret.clone()))
        }
    }
}

/// The Secret to be, with the fingerprint of a certificate that is new.
fn annotated(order: &Issue, made: &Credential) -> Result<Child, CarryOut> {
    let mut child = order.secret.clone();
    if !order.legacy.pair {
        let annotations = &mut child.object["metadata"]["annotations"];
        annotations[labels::ISSUED] = json!(made.fingerprint()?);
    }
    Ok(child)
}

/// A credential as `data` of a Secret of type `kubernetes.io/tls`.
fn credential_data(made: &Credential) -> Value {
    let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
    json!({
        CA_FILE: bytes(&made.ca),
        CERTIFICATE_FILE: bytes(&made.certificate),
        KEY_FILE: bytes(&made.key),
    })
}

#[cfg(test)]
mod tests;
