//! Which CA signs, without asking for it each time?
//!
//! A CA that has just been used is kept for a moment, and used again as long as the watch tells of no other revision of
//! its Secret. Its key is wiped when the moment is over.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use tokio_util::task::TaskTracker;

use super::Refusal;
use crate::error::within;
use crate::pki::{Authority, Signer};
use crate::wiped::Wiped;

/// How long a CA is kept after it was read.
const KEPT: Duration = Duration::from_secs(5);

/// CAs by the namespace and the name of their Secret.
#[derive(Clone)]
pub(super) struct Signers {
    client: Client,
    kept: Arc<Mutex<HashMap<Key, Kept>>>,
    wipers: TaskTracker,
}

type Key = (String, String);

/// A CA, as its Secret was at a revision.
struct Kept {
    revision: String,
    authority: Arc<Authority>,
}

impl Signers {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            kept: Arc::default(),
            wipers: TaskTracker::new(),
        }
    }

    /// The CA that is in this Secret, of which the watch told last that it is at `revision`.
    pub(super) async fn get(
        &self,
        namespace: &str,
        name: &str,
        revision: Option<&str>,
    ) -> Result<Arc<Authority>, Refusal> {
        let key = (namespace.to_owned(), name.to_owned());
        let known = self.lock().get(&key).and_then(|kept| {
            (Some(kept.revision.as_str()) == revision).then(|| kept.authority.clone())
        });
        if let Some(known) = known {
            return Ok(known);
        }
        let kept = self.read(namespace, name).await?;
        let authority = kept.authority.clone();
        self.keep(key, kept);
        Ok(authority)
    }

    async fn read(&self, namespace: &str, name: &str) -> Result<Kept, Refusal> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let secret = match within(api.get(name)).await {
            Ok(secret) => Wiped::from(secret),
            Err(error) if error.code() == Some(404) => return Err(Refusal::NoIssuer),
            Err(error) => {
                tracing::debug!(secret = name, namespace, %error, "Could not read the CA");
                return Err(Refusal::Unavailable);
            }
        };
        let authority = Signer::from_secret(&secret).and_then(|signer| signer.authority());
        let authority = authority.map_err(|error| {
            tracing::warn!(secret = name, namespace, %error, "The CA cannot sign");
            Refusal::NoIssuer
        })?;
        Ok(Kept {
            revision: secret.metadata.resource_version.clone().unwrap_or_default(),
            authority: Arc::new(authority),
        })
    }

    fn keep(&self, key: Key, kept: Kept) {
        let used = kept.authority.clone();
        self.lock().insert(key.clone(), kept);
        let signers = self.clone();
        self.wipers.spawn(async move {
            tokio::time::sleep(KEPT).await;
            let mut kept = signers.lock();
            // Another one may have taken its place.
            if kept
                .get(&key)
                .is_some_and(|kept| Arc::ptr_eq(&kept.authority, &used))
            {
                kept.remove(&key);
            }
        });
    }

    #[cfg(test)]
    pub(super) fn holds_any(&self) -> bool {
        !self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Kept>> {
        // Single inserts and removals: a panic elsewhere leaves none half done.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
