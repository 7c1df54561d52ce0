//! How is what is true told?
//!
//! The only place that writes statuses and events: one merge patch of `/status` under the resourceVersion, naming
//! only our own fields.

use std::fmt::Debug;

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::{Patch, PatchParams};
use kube::runtime::events::{Event as Announced, EventType, Recorder, Reporter};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use spanwire_api::AccessGrant;
use spanwire_plan::plan::{Code, Event};
use spanwire_plan::report::{Report, cut};
use spanwire_plan::settle::FIELD_MANAGER;

use crate::dying::Dying;
use crate::error::{CallServer, within};

/// Characters of a code that we make. It begins with a letter, so that unquoted YAML stays a string; 24 of these are
/// 142 bits.
const ALPHABET: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
/// How long a code is, as upstream's.
const CODE_LENGTH: usize = 24;

/// Writes statuses and events.
pub struct Publisher {
    client: Client,
    recorder: Recorder,
    dying: Dying,
}

impl Publisher {
    /// A publisher that signs events as `controller`, instance `instance`.
    pub fn new(client: Client, controller: &str, instance: &str, dying: Dying) -> Self {
        let reporter = Reporter {
            controller: controller.to_owned(),
            instance: Some(instance.to_owned()),
        };
        Self {
            recorder: Recorder::new(client.clone(), reporter),
            client,
            dying,
        }
    }

    /// Writes a status.
    pub async fn publish<K>(&self, object: &K, report: Report) -> Result<(), CallServer>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Debug,
    {
        let namespace = object.namespace().unwrap_or_default();
        let name = object.name_any();
        let mut status = Value::Object(report.status);
        if let Some(code) = self.code(report.code, &namespace, &name).await? {
            status["code"] = json!(code);
        }
        let patch = json!({
            "metadata": {"resourceVersion": object.resource_version()},
            "status": status,
        });
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let api =
            Api::<kube::core::PartialObjectMeta<K>>::namespaced(self.client.clone(), &namespace);
        within(api.patch_status(&name, &params, &Patch::Merge(&patch))).await?;
        tracing::info!(
            kind = %K::kind(&()), namespace, name,
            status = status["status"].as_str(), message = status["message"].as_str(),
            "Published a status"
        );
        Ok(())
    }

    /// Publishes an event. One that is lost is lost: the status says what is true.
    pub async fn announce(&self, about: &ObjectReference, event: &Event) {
        let namespace = about.namespace.as_deref().unwrap_or_default();
        if !self.dying.admits(namespace) {
            return;
        }
        let announced = Announced {
            type_: if event.warning {
                EventType::Warning
            } else {
                EventType::Normal
            },
            reason: event.reason.clone(),
            note: Some(cut(&event.note).into_owned()),
            action: event.reason.clone(),
            secondary: None,
        };
        let answer = within(self.recorder.publish(&announced, about)).await;
        self.dying.hear(namespace, &answer);
        if let Err(error) = answer {
            tracing::debug!(%error, reason = event.reason, "Lost an event");
        }
    }

    async fn code(
        &self,
        wish: Option<Code>,
        namespace: &str,
        name: &str,
    ) -> Result<Option<String>, CallServer> {
        match wish {
            None | Some(Code::Keep) => Ok(None),
            Some(Code::Mint) => Ok(Some(code()?)),
            Some(Code::CopySpec) => {
                let api: Api<AccessGrant> = Api::namespaced(self.client.clone(), namespace);
                let grant = within(api.get(name)).await?;
                Ok(grant.spec.code.filter(|code| !code.is_empty()))
            }
        }
    }
}

/// A new code: letters and digits without bias, a letter first.
fn code() -> Result<String, CallServer> {
    let random = SystemRandom::new();
    let mut code = String::with_capacity(CODE_LENGTH);
    while code.len() < CODE_LENGTH {
        let mut byte = [0_u8; 1];
        random
            .fill(&mut byte)
            .map_err(|_| kube::Error::Service("no randomness".into()))?;
        let [byte] = byte;
        // Six bits, thrown again where they name no character; the first 52 are letters.
        let choice = usize::from(byte & 0x3f);
        let limit = if code.is_empty() { 52 } else { ALPHABET.len() };
        if let Some(character) = ALPHABET
            .get(..limit)
            .and_then(|allowed| allowed.get(choice))
        {
            code.push(char::from(*character));
        }
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_24_letters_and_digits_and_begins_with_a_letter() {
        for _ in 0..200 {
            let code = code().unwrap();
            assert_eq!(code.len(), CODE_LENGTH);
            assert!(
                code.starts_with(|first: char| first.is_ascii_alphabetic()),
                "{code}"
            );
            assert!(
                code.chars()
                    .all(|character| character.is_ascii_alphanumeric()),
                "{code}"
            );
        }
    }
}
