//! Which version of each profile does the router use, and which should it have next?
//!
//! A profile's version, paths and ordinals are one triple: it moves as a whole or not at all. The router shows values that
//! it refused (`facts/router.md` §3), so what is true is what it accepted from us on this connection.

use super::desired::Desired;
use crate::credentials::Store;
use spanwire_router::diff::Live;
use spanwire_router::entity::{Entity, EntityId, EntityType, SslProfile};
use std::collections::{BTreeMap, BTreeSet};

/// The ordinal of a profile that the router has not met before.
const FIRST_ORDINAL: u64 = 1;

/// What the router accepted.
#[derive(Default)]
pub(crate) struct Record {
    in_force: BTreeMap<String, InForce>,
}

#[derive(Clone)]
struct InForce {
    version: String,
    profile: SslProfile,
}

impl Record {
    /// Notes that the router accepted a profile.
    pub(crate) fn accept(&mut self, store: &Store, profile: &SslProfile) {
        if let Some(version) = store.version_of(profile) {
            let in_force = InForce {
                version,
                profile: profile.clone(),
            };
            self.in_force.insert(profile.name.clone(), in_force);
        }
    }

    /// Notes that the router lost a profile.
    pub(crate) fn forget(&mut self, profile: &str) {
        self.in_force.remove(profile);
    }

    /// Profile → version in force.
    pub(crate) fn versions(&self) -> BTreeMap<String, String> {
        let version =
            |(name, in_force): (&String, &InForce)| (name.clone(), in_force.version.clone());
        self.in_force.iter().map(version).collect()
    }

    /// The version of a profile in force.
    pub(crate) fn version(&self, profile: &str) -> Option<&str> {
        self.in_force
            .get(profile)
            .map(|in_force| in_force.version.as_str())
    }

    /// Profiles of the router that it is not known to have accepted as it shows them.
    pub(crate) fn doubted(&self, live: &Live) -> BTreeSet<String> {
        let profiles = live
            .iter()
            .filter(|(id, _)| id.entity_type == EntityType::SslProfile);
        profiles
            .map(|(id, _)| id.name.clone())
            .filter(|name| !self.in_force.contains_key(name))
            .collect()
    }

    /// The profiles that the router should have now, each in the best version that there is and that it did not refuse
    /// lately. A profile without any is left out: its users wait.
    pub(crate) fn wanted(
        &self,
        desired: &Desired,
        store: &Store,
        live: &Live,
        is_waiting: impl Fn(&EntityId, &str) -> bool,
    ) -> Vec<SslProfile> {
        let mut profiles = Vec::new();
        for name in desired.profile_names() {
            let id = EntityId::new(EntityType::SslProfile, name);
            let shown = match live.get(&id) {
                Some(Entity::SslProfile(profile)) => Some(profile),
                _ => None,
            };
            let candidates = self.candidates(name, desired, store, shown);
            let mut on_disk = candidates
                .into_iter()
                .filter(|version| !is_waiting(&id, version))
                .filter_map(|version| {
                    store
                        .ssl_profile(name, &version)
                        .map(|files| (version, files))
                });
            if let Some((version, files)) = on_disk.next() {
                let ordinals = self.ordinals(name, &version, desired, store, shown);
                profiles.push(with_attributes(files, ordinals, desired.entities()));
            }
        }
        profiles
    }

    /// Versions to try, the best first.
    ///
    /// A router that has not met the profile gets the last version that one took into use, and the newest after that: an
    /// UPDATE of a profile in use is the only request by which a router judges files and keeps the old ones if they are
    /// bad.
    fn candidates(
        &self,
        name: &str,
        desired: &Desired,
        store: &Store,
        shown: Option<&SslProfile>,
    ) -> Vec<String> {
        let newest = desired.versions.get(name).cloned();
        let proven = match (self.in_force.get(name), shown) {
            (Some(in_force), _) => Some(in_force.version.clone()),
            (None, _) => store.current(name),
        };
        match (self.in_force.get(name), shown) {
            (None, None) => [proven, newest, None],
            (None, Some(shown)) => [newest, proven, store.version_of(shown)],
            (Some(_), _) => [newest, proven, None],
        }
        .into_iter()
        .flatten()
        .collect()
    }

    /// The ordinal and the oldest valid one that go with a version (`facts/router.md` §6).
    fn ordinals(
        &self,
        name: &str,
        version: &str,
        desired: &Desired,
        store: &Store,
        shown: Option<&SslProfile>,
    ) -> Ordinals {
        let of = |profile: &SslProfile| (profile.ordinal, profile.oldest_valid_ordinal);
        let in_force = self.in_force.get(name);
        match (in_force, shown) {
            (Some(in_force), _) if in_force.version == version => return of(&in_force.profile),
            (None, Some(shown)) if store.version_of(shown).as_deref() == Some(version) => {
                return of(shown);
            }
            (None, None) => return (Some(FIRST_ORDINAL), None),
            _ => {}
        }
        let known = [in_force.map(|in_force| &in_force.profile), shown];
        let last = known
            .into_iter()
            .flatten()
            .filter_map(|profile| profile.ordinal)
            .max()
            .unwrap_or(0);
        // Raised on a listener it would close what came in, and the link be down until the other side dials again. Left
        // alone on a connector, each rotation would leave three connections for ever.
        let is_listened_with = desired.entities().iter().any(|entity| {
            entity.entity_type() == EntityType::Listener && entity.ssl_profile() == Some(name)
        });
        (Some(last + 1), (!is_listened_with).then_some(last))
    }
}

/// `ordinal` and `oldestValidOrdinal`.
type Ordinals = (Option<u64>, Option<u64>);

/// Adds what the configuration says of a profile but its paths, which are upstream's.
fn with_attributes(files: SslProfile, ordinals: Ordinals, entities: &[Entity]) -> SslProfile {
    let described = entities.iter().find_map(|entity| match entity {
        Entity::SslProfile(profile) if profile.name == files.name => Some(profile),
        _ => None,
    });
    let (protocols, other) = described
        .map(|profile| (profile.protocols.clone(), profile.other.clone()))
        .unwrap_or_default();
    let (ordinal, oldest_valid_ordinal) = ordinals;
    SslProfile {
        ordinal,
        oldest_valid_ordinal,
        protocols,
        other,
        ..files
    }
}
