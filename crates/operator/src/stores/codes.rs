//! What is known of codes, which never enter a World?

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sha2::{Digest, Sha256};
use spanwire_api::{AccessGrant, AccessToken};
use spanwire_plan::{Seen, labels};
use subtle::{Choice, ConstantTimeEq};

/// Digests of the codes of grants, and where grants and tokens are, by uid.
#[derive(Default)]
pub struct Codes {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// Grant → namespace and name.
    grants: HashMap<String, (String, String)>,
    /// Token → namespace.
    tokens: HashMap<String, String>,
    digests: Digests,
}

/// Digests of codes, by uid of the grant, looked up in a time that does not tell whether there is one: the same steps of
/// one search, and the same comparison with what is found.
struct Digests {
    hasher: RandomState,
    /// By hash of the uid, and never empty.
    entries: Vec<Entry>,
}

struct Entry {
    hash: u64,
    uid: String,
    digest: [u8; 32],
}

impl Default for Digests {
    fn default() -> Self {
        let mut digests = Self {
            hasher: RandomState::new(),
            entries: Vec::new(),
        };
        // As long as a uid, and none: what an unknown grant is compared with where there is no other.
        digests.insert("none-none-none-none-none-none-none-0", [0; 32]);
        digests
    }
}

impl Digests {
    fn insert(&mut self, uid: &str, digest: [u8; 32]) {
        self.remove(uid);
        let hash = self.hasher.hash_one(uid);
        let place = self.place(hash);
        let uid = uid.to_owned();
        self.entries.insert(place, Entry { hash, uid, digest });
    }

    fn remove(&mut self, uid: &str) {
        let place = self.place(self.hasher.hash_one(uid));
        if self
            .entries
            .get(place)
            .is_some_and(|entry| entry.uid == uid)
        {
            self.entries.remove(place);
        }
    }

    /// The digest that is nearest, and whether it is this one's.
    fn get(&self, uid: &str) -> ([u8; 32], Choice) {
        let place = self.place(self.hasher.hash_one(uid));
        let entry = &self.entries[place.min(self.entries.len() - 1)];
        (entry.digest, entry.uid.as_bytes().ct_eq(uid.as_bytes()))
    }

    fn place(&self, hash: u64) -> usize {
        self.entries.partition_point(|entry| entry.hash < hash)
    }
}

impl Codes {
    /// Takes the codes out of a grant on its way into the stores.
    pub fn take_from_grant(&self, grant: &mut Seen<AccessGrant>) {
        let Seen::Fits(grant) = grant else { return };
        let code = grant
            .status
            .as_mut()
            .and_then(|status| hide(&mut status.code));
        hide(&mut grant.spec.code);
        let metadata = &grant.metadata;
        let uid = metadata.uid.clone().unwrap_or_default();
        let mut known = self.lock();
        match code {
            Some(code) => known
                .digests
                .insert(&uid, Sha256::digest(code.as_bytes()).into()),
            None => known.digests.remove(&uid),
        }
        let place = (
            metadata.namespace.clone().unwrap_or_default(),
            metadata.name.clone().unwrap_or_default(),
        );
        known.grants.insert(uid, place);
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
        known.digests.remove(uid);
    }

    /// SHA-256 of the code of the grant with this uid; of another one, and a no, where there is no such grant or code.
    pub fn digest(&self, uid: &str) -> ([u8; 32], Choice) {
        self.lock().digests.get(uid)
    }

    /// Namespace and name of the grant with this uid.
    pub fn place_of_grant(&self, uid: &str) -> Option<(String, String)> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_found_by_its_uid_and_by_no_other() {
        let mut digests = Digests::default();
        let found = |digests: &Digests, uid: &str| {
            let (digest, is_it) = digests.get(uid);
            bool::from(is_it).then_some(digest)
        };
        assert_eq!(found(&digests, "uid"), None);
        for number in 0..200_u8 {
            digests.insert(&format!("uid-{number}"), [number; 32]);
        }
        digests.insert("uid-7", [77; 32]);
        for number in (0..200_u8).filter(|number| *number != 7) {
            assert_eq!(
                found(&digests, &format!("uid-{number}")),
                Some([number; 32])
            );
        }
        assert_eq!(found(&digests, "uid-7"), Some([77; 32]));
        digests.remove("uid-7");
        for unknown in ["uid-7", "uid-200", "uid", ""] {
            assert_eq!(found(&digests, unknown), None, "{unknown}");
        }
    }
}
