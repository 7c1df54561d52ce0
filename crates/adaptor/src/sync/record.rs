//! Which version of each profile does the router use, and which should it have next?
//!
//! A profile's version, paths and ordinals are one triple: it moves as a whole or not at all. The router shows values that
//! it refused (`facts/router.md` §3), so what is true is what it accepted from us on this connection.

use super::desired::Desired;
use super::refusal::form;
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
}

/// Chooses what the router should have of each profile.
pub(crate) struct Choice<'a> {
    record: &'a Record,
    store: &'a Store,
    live: &'a Live,
    versions: &'a BTreeMap<String, String>,
    /// What the configuration says of profiles. Its paths are upstream's and mean nothing here.
    described: BTreeMap<&'a str, &'a SslProfile>,
    /// Profiles that some listener uses.
    listened_with: BTreeSet<&'a str>,
}

impl<'a> Choice<'a> {
    /// Of what is on disk, for this router.
    pub(crate) fn new(
        record: &'a Record,
        desired: &'a Desired,
        store: &'a Store,
        live: &'a Live,
    ) -> Self {
        let described = desired.entities().iter().filter_map(|entity| match entity {
            Entity::SslProfile(profile) => Some((profile.name.as_str(), profile)),
            _ => None,
        });
        let listeners = desired
            .entities()
            .iter()
            .filter(|entity| entity.entity_type() == EntityType::Listener);
        Self {
            record,
            store,
            live,
            versions: &desired.versions,
            described: described.collect(),
            listened_with: listeners.filter_map(Entity::ssl_profile).collect(),
        }
    }

    /// What the router should have of a profile now: the best that was not refused lately, with its ordinals. None if there
    /// is nothing: then its users wait.
    pub(crate) fn best(
        &self,
        name: &str,
        is_waiting: impl Fn(&EntityId, &str) -> bool,
    ) -> Option<SslProfile> {
        let id = EntityId::new(EntityType::SslProfile, name);
        let candidates = self.candidates(name).into_iter();
        let mut possible = candidates
            .filter(|profile| !is_waiting(&id, &form(&Entity::SslProfile(profile.clone()))));
        possible.next().map(|profile| self.with_ordinals(profile))
    }

    /// What can be had of a profile, the best first, without the right ordinals.
    ///
    /// A router that has not met the profile gets what one took into use last, and the newest after that: an UPDATE of a
    /// profile in use is the only request by which a router judges files and keeps the old ones if they are bad.
    pub(crate) fn candidates(&self, name: &str) -> Vec<SslProfile> {
        let on_disk = |version: &str| {
            let files = self.store.ssl_profile(name, version)?;
            let described = self.described.get(name);
            Some(SslProfile {
                protocols: described.and_then(|profile| profile.protocols.clone()),
                ciphers: described.and_then(|profile| profile.ciphers.clone()),
                other: described
                    .map(|profile| profile.other.clone())
                    .unwrap_or_default(),
                ..files
            })
        };
        let newest = || self.versions.get(name).and_then(|version| on_disk(version));
        let proven = || {
            self.store
                .current(name)
                .and_then(|version| on_disk(&version))
        };
        let candidates = match (self.record.in_force.get(name), self.shown(name)) {
            (Some(in_force), _) => [newest(), Some(in_force.profile.clone()), None],
            (None, None) => [proven(), newest(), None],
            (None, Some(shown)) => {
                let version = self.store.version_of(shown);
                [
                    newest(),
                    proven(),
                    version.and_then(|version| on_disk(&version)),
                ]
            }
        };
        candidates.into_iter().flatten().collect()
    }

    /// A profile with the ordinals that go with its version (`facts/router.md` §6).
    fn with_ordinals(&self, profile: SslProfile) -> SslProfile {
        let version = self.store.version_of(&profile);
        let in_force = self.record.in_force.get(&profile.name);
        let shown = self.shown(&profile.name);
        let (ordinal, oldest_valid_ordinal) = match (in_force, shown) {
            (Some(in_force), _) if Some(&in_force.version) == version.as_ref() => {
                ordinals(&in_force.profile)
            }
            (None, Some(shown)) if self.store.version_of(shown) == version => ordinals(shown),
            (None, None) => (Some(FIRST_ORDINAL), None),
            _ => {
                let known = [in_force.map(|in_force| &in_force.profile), shown];
                let ordinals = known
                    .into_iter()
                    .flatten()
                    .filter_map(|profile| profile.ordinal);
                let last = ordinals.max().unwrap_or(0);
                // Raised on a listener it would close what came in, and the link be down until the other side dials
                // again. Left alone on a connector, each rotation would leave three connections for ever.
                let is_dialled_with = !self.listened_with.contains(profile.name.as_str());
                (Some(last + 1), is_dialled_with.then_some(last))
            }
        };
        SslProfile {
            ordinal,
            oldest_valid_ordinal,
            ..profile
        }
    }

    /// The profile as the router shows it.
    fn shown(&self, name: &str) -> Option<&'a SslProfile> {
        match self.live.get(&EntityId::new(EntityType::SslProfile, name)) {
            Some(Entity::SslProfile(profile)) => Some(profile),
            _ => None,
        }
    }
}

fn ordinals(profile: &SslProfile) -> (Option<u64>, Option<u64>) {
    (profile.ordinal, profile.oldest_valid_ordinal)
}
