//! What is known of codes, which never enter a World?

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sha2::{Digest, Sha256};
use spanwire_api::{AccessGrant, AccessToken};
use spanwire_plan::{Seen, labels};

/// Digests of the codes of grants, and where grants and tokens are, by uid.
#[derive(Default)]
pub struct Codes {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    grants: HashMap<String, Grant>,
    tokens: HashMap<String, String>,
}

/// A grant, as far as the grant server looks it up here.
#[derive(Clone, Debug)]
pub struct Grant {
    /// Its namespace.
    pub namespace: String,
    /// SHA-256 of `status.code`, where there is one.
    pub digest: Option<[u8; 32]>,
}

impl Codes {
    /// Takes the codes out of a grant on its way into the stores.
    pub fn take_from_grant(&self, grant: &mut Seen<AccessGrant>) {
        let Seen::Fits(grant) = grant else { return };
        let code = grant
            .status
            .as_mut()
            .and_then(|status| hide(&mut status.code));
        let digest = code.map(|code| Sha256::digest(code.as_bytes()).into());
        hide(&mut grant.spec.code);
        let metadata = &grant.metadata;
        let known = Grant {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            digest,
        };
        self.lock()
            .grants
            .insert(metadata.uid.clone().unwrap_or_default(), known);
    }

    /// Takes the code out of a token on its way into the stores.
    pub fn take_from_token(&self, token: &mut Seen<AccessToken>) {
        let Seen::Fits(token) = token else { return };
        if !token.spec.code.is_empty() {
            labels::PRESENT.clone_into(&mut token.spec.code);
        }
        let metadata = &token.metadata;
        let namespace = metadata.namespace.clone().unwrap_or_default();
        self.lock()
            .tokens
            .insert(metadata.uid.clone().unwrap_or_default(), namespace);
    }

    /// Lets go of a grant or token.
    pub fn forget(&self, uid: &str) {
        let mut known = self.lock();
        known.grants.remove(uid);
        known.tokens.remove(uid);
    }

    /// The grant with this uid.
    pub fn grant(&self, uid: &str) -> Option<Grant> {
        self.lock().grants.get(uid).cloned()
    }

    /// The namespace of the token with this uid.
    pub fn namespace_of_token(&self, uid: &str) -> Option<String> {
        self.lock().tokens.get(uid).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Puts [`labels::PRESENT`] in the place of a code, and gives the code out.
fn hide(code: &mut Option<String>) -> Option<String> {
    let taken = code.take().filter(|code| !code.is_empty())?;
    *code = Some(labels::PRESENT.to_owned());
    Some(taken)
}
