//! What should the router have, going by the last good state of the mounted folder?

use crate::credentials::Store;
use crate::error::ReadMount;
use crate::mount::Snapshot;
use spanwire_router::config::{CONFIG_FILE, Document};
use spanwire_router::credentials::{PROFILES_FILE, Profiles};
use spanwire_router::entity::{EntityId, EntityType};
use spanwire_router::report::{Refused, reason};
use std::collections::BTreeMap;
use tracing::{info, warn};

/// The last good state, and what is wrong with the newest.
#[derive(Default)]
pub(crate) struct Desired {
    /// Of the last folder that could be read.
    pub(crate) revision: String,
    /// The last configuration that could be understood.
    pub(crate) document: Document,
    /// Profile → the last version of it that was good. It lies in the store.
    pub(crate) versions: BTreeMap<String, String>,
    faults: BTreeMap<String, Refused>,
}

impl Desired {
    /// Takes what is good of a snapshot, and keeps what was good before in place of the rest.
    pub(crate) fn take(&mut self, snapshot: Result<Snapshot, ReadMount>, store: &Store) {
        let mut faults = BTreeMap::new();
        match snapshot {
            Ok(snapshot) => self.take_snapshot(snapshot, store, &mut faults),
            Err(error) => {
                fault(
                    &mut faults,
                    "mount".to_owned(),
                    reason::MOUNT_UNREADABLE,
                    error.to_string(),
                );
            }
        }
        for (entity, fault) in &faults {
            if self.faults.get(entity) != Some(fault) {
                warn!(
                    entity,
                    reason = fault.reason,
                    error = fault.message,
                    "Kept the last good state"
                );
            }
        }
        self.faults = faults;
    }

    /// What is wrong.
    pub(crate) fn faults(&self) -> Vec<Refused> {
        self.faults.values().cloned().collect()
    }

    fn take_snapshot(
        &mut self,
        snapshot: Snapshot,
        store: &Store,
        faults: &mut BTreeMap<String, Refused>,
    ) {
        if snapshot.revision != self.revision {
            info!(revision = snapshot.revision, "Read the mounted folder");
            self.revision = snapshot.revision;
        }
        match snapshot.document {
            Ok(document) => self.document = document,
            Err(error) => {
                fault(
                    faults,
                    CONFIG_FILE.to_owned(),
                    reason::CONFIG_BAD,
                    error.to_string(),
                );
            }
        }
        let profiles = match snapshot.profiles {
            Ok(Profiles(profiles)) => profiles,
            Err(error) => {
                fault(
                    faults,
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
                    fault(faults, entity, reason::CREDENTIAL_BAD, error.to_string());
                    if let Some(version) = self.versions.remove(&name) {
                        versions.insert(name, version);
                    }
                }
            }
        }
        // A profile that the configuration names and the Secret lacks is torn, not removed: its last good version stays.
        for name in self.document.profile_names() {
            if let Some((name, version)) = self.versions.remove_entry(name) {
                versions.entry(name).or_insert(version);
            }
        }
        self.versions = versions;
    }
}

fn fault(faults: &mut BTreeMap<String, Refused>, entity: String, reason: &str, message: String) {
    let refused = Refused {
        entity: entity.clone(),
        reason: reason.to_owned(),
        message,
    };
    faults.insert(entity, refused);
}
