//! What should the router have, going by the last good state of the mounted folder?

use super::refusal::pause;
use crate::credentials::Store;
use crate::error::{ReadMount, TakeCredential};
use crate::mount::Snapshot;
use spanwire_router::config::{CONFIG_FILE, Document};
use spanwire_router::credentials::{PROFILES_FILE, Profiles};
use spanwire_router::entity::{Entity, EntityId, EntityType};
use spanwire_router::report::{Refused, reason};
use std::collections::{BTreeMap, BTreeSet};
use tokio::time::Instant;
use tracing::{info, warn};

/// The last good state, and what is wrong with the newest.
#[derive(Default)]
pub(crate) struct Desired {
    /// Of the last folder that could be read.
    pub(crate) revision: String,
    /// The last configuration that could be understood. Before the first, nothing is known of what
    /// the router should have, so it keeps what it has.
    document: Option<Document>,
    /// Profile → the last version of it that was good. It lies in the store.
    pub(crate) versions: BTreeMap<String, String>,
    faults: BTreeMap<String, Refused>,
    /// How often in a row the folder could not be read or a file not be stored, and when to try
    /// again.
    failures: u32,
    again: Option<Instant>,
}

impl Desired {
    /// Takes what is good of a snapshot, and keeps what was good before in place of the rest.
    pub(crate) fn take(&mut self, snapshot: Result<Snapshot, ReadMount>, store: &Store) {
        let mut faults = Faults::default();
        match snapshot {
            Ok(snapshot) => self.take_snapshot(snapshot, store, &mut faults),
            Err(error) => {
                faults.note(
                    "mount".to_owned(),
                    reason::MOUNT_UNREADABLE,
                    error.to_string(),
                );
                faults.may_pass = true;
            }
        }
        for (entity, fault) in &faults.by_entity {
            if self.faults.get(entity) != Some(fault) {
                let Refused {
                    reason, message, ..
                } = fault;
                warn!(entity, reason, error = message, "Kept the last good state");
            }
        }
        self.faults = faults.by_entity;
        self.failures = if faults.may_pass {
            self.failures.saturating_add(1)
        } else {
            0
        };
        self.again = faults
            .may_pass
            .then(|| Instant::now() + pause(self.failures));
    }

    /// Whether it is known what the router should have.
    pub(crate) fn is_known(&self) -> bool {
        self.document.is_some()
    }

    /// The entities that are wanted.
    pub(crate) fn entities(&self) -> &[Entity] {
        self.document
            .as_ref()
            .map_or(&[], |document| &document.entities)
    }

    /// The profiles that they name.
    pub(crate) fn profile_names(&self) -> BTreeSet<&str> {
        self.document
            .as_ref()
            .map(Document::profile_names)
            .unwrap_or_default()
    }

    /// When to read the folder again although it has not changed.
    pub(crate) fn again(&self) -> Option<Instant> {
        self.again
    }

    /// What is wrong.
    pub(crate) fn faults(&self) -> Vec<Refused> {
        self.faults.values().cloned().collect()
    }

    fn take_snapshot(&mut self, snapshot: Snapshot, store: &Store, faults: &mut Faults) {
        if snapshot.revision != self.revision {
            info!(revision = snapshot.revision, "Read the mounted folder");
            self.revision = snapshot.revision;
        }
        match snapshot.document {
            Ok(document) => self.document = Some(document),
            Err(error) => {
                faults.note(
                    CONFIG_FILE.to_owned(),
                    reason::CONFIG_BAD,
                    error.to_string(),
                );
            }
        }
        let profiles = match snapshot.profiles {
            Ok(Profiles(profiles)) => profiles,
            Err(error) => {
                faults.note(
                    PROFILES_FILE.to_owned(),
                    reason::CONFIG_BAD,
                    error.to_string(),
                );
                return;
            }
        };
        let mut versions = BTreeMap::new();
        for (name, profile) in profiles {
            match store.take(&name, &profile, &snapshot.files) {
                Ok(()) => {
                    versions.insert(name, profile.version);
                }
                Err(error) => {
                    let entity = EntityId::new(EntityType::SslProfile, &name).to_string();
                    faults.may_pass |= matches!(error, TakeCredential::StoreFile { .. });
                    faults.note(entity, reason::CREDENTIAL_BAD, error.to_string());
                    if let Some(version) = self.versions.get(&name) {
                        versions.insert(name, version.clone());
                    }
                }
            }
        }
        // A profile that the configuration names and the Secret lacks is torn, not removed: its
        // last good version stays.
        for name in self.profile_names() {
            if let Some(version) = self.versions.get(name) {
                versions
                    .entry(name.to_owned())
                    .or_insert_with(|| version.clone());
            }
        }
        self.versions = versions;
    }
}

/// What is wrong with one state of the folder.
#[derive(Default)]
struct Faults {
    by_entity: BTreeMap<String, Refused>,
    /// Whether some of it may be gone by itself: no room for a file, a folder that cannot be read.
    /// What is bad is not made better by reading it again.
    may_pass: bool,
}

impl Faults {
    fn note(&mut self, entity: String, reason: &str, message: String) {
        let reason = reason.to_owned();
        self.by_entity.insert(
            entity.clone(),
            Refused {
                entity,
                reason,
                message,
            },
        );
    }
}
