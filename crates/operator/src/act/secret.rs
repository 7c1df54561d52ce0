//! How do key bytes get from one Secret into another, and into the first?

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};
use spanwire_plan::facts::{CA_FILE, CERTIFICATE_FILE, KEY_FILE};
use spanwire_plan::labels;
use spanwire_plan::plan::{Child, Content, Issue, Live, ObjectKind, Source};
use spanwire_plan::settle::FIELD_MANAGER;

use super::{CarryOut, Workshop, guard, object, pointer};
use crate::error::{CallServer, within};
use crate::pki::{self, Credential, Signer};
use crate::wiped::Wiped;

impl Workshop {
    /// The child as an object, with its data: texts as they are, copies from their sources.
    pub(super) async fn filled(&self, child: &Child) -> Result<Wiped<DynamicObject>, CarryOut> {
        let mut object = Wiped::from(object(child)?);
        if !child.data.is_empty() {
            object.data["data"] = self.data(child).await?.take();
        }
        Ok(object)
    }

    /// Writes by a merge patch under the resourceVersion: a Secret that holds copies, where it is five times faster than an
    /// apply of a full one (`facts/order.md` k), and what is to lose fields that another manager may hold.
    pub(super) async fn merge(&self, child: &Child, live: &Live) -> Result<(), CarryOut> {
        let mut patch = Wiped::from(child.object.clone());
        // Of other kinds the object itself says what is to go.
        if matches!(child.kind, ObjectKind::Secret | ObjectKind::ConfigMap) {
            patch["data"] = self.data(child).await?.take();
            for key in &live.surplus {
                patch["data"][key] = Value::Null;
            }
        }
        patch["metadata"]["uid"] = json!(live.uid);
        patch["metadata"]["resourceVersion"] = json!(live.resource_version);
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let api = self.api(&child.reference());
        within(api.patch_metadata(child.name(), &params, &Patch::Merge(&*patch))).await?;
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
        let child = &annotated(order, &made)?;
        let Some(live) = &order.live else {
            let mut object = Wiped::from(object(child)?);
            object.data["data"] = credential_data(&made);
            return self.post(child, object).await;
        };
        let mut data = json!({"op": "add", "path": "/data"});
        data["value"] = credential_data(&made);
        let mut patch = vec![guard(&live.resource_version), data];
        let annotations = child
            .object
            .pointer("/metadata/annotations")
            .and_then(Value::as_object);
        for (key, value) in annotations.into_iter().flatten() {
            let at = format!("/metadata/annotations/{}", pointer(key));
            patch.push(json!({"op": "add", "path": at, "value": value}));
        }
        let patch: json_patch::Patch = serde_json::from_value(Value::Array(patch))
            .map_err(|error| CallServer::from(kube::Error::SerdeError(error)))?;
        let patch = Wiped::from(Patch::<()>::Json(patch));
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let api = self.api(&child.reference());
        within(api.patch_metadata(child.name(), &params, &patch)).await?;
        Ok(())
    }

    /// The CA at the revision that the plan knew.
    async fn signer(&self, namespace: &str, source: &Source) -> Result<Signer, CarryOut> {
        let secret = self.source(namespace, source).await?;
        Ok(Signer::from_secret(&secret)?)
    }

    async fn data(&self, child: &Child) -> Result<Wiped<Value>, CarryOut> {
        let mut sources: BTreeMap<&Source, Wiped<Secret>> = BTreeMap::new();
        for content in child.data.values() {
            if let Content::Copy(copied) = content
                && !sources.contains_key(&copied.from)
            {
                let secret = self.source(child.namespace(), &copied.from).await?;
                sources.insert(&copied.from, secret);
            }
        }
        let mut data = Wiped::from(json!({}));
        for (key, content) in &child.data {
            let value = match content {
                Content::Text(text) if child.kind == ObjectKind::Secret => file(text.as_bytes()),
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
                    file(&bytes.0)
                }
            };
            data[key] = value;
        }
        Ok(data)
    }

    /// A Secret, refused when it is not the one that the plan knew.
    async fn source(&self, namespace: &str, source: &Source) -> Result<Wiped<Secret>, CarryOut> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let secret = Wiped::from(within(api.get(&source.secret)).await?);
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
pub(crate) fn credential_data(made: &Credential) -> Value {
    let files = [
        (CA_FILE, &made.ca),
        (CERTIFICATE_FILE, &made.certificate),
        (KEY_FILE, &*made.key),
    ];
    // Not by `json!`, which copies what it is given.
    let files = files.map(|(name, text)| (name.to_owned(), file(text.as_bytes())));
    Value::Object(files.into_iter().collect())
}

/// A file of a Secret, as its `data` has it.
fn file(content: &[u8]) -> Value {
    Value::String(STANDARD.encode(content))
}

#[cfg(test)]
mod tests;
