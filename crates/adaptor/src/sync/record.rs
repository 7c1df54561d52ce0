//! Which version of each profile does the router use, and which should it have next?
//!
//! A profile's version, paths and ordinals are one triple: it moves as a whole or not at all. The
//! router shows values that it refused (`facts/router.md` §3), so what is true is what it accepted
//! from us on this connection.

use super::desired::Desired;
use super::refusal::form;
use crate::credentials::Store;
use spanwire_router::diff::Live;
use spanwire_router::entity::{Entity, EntityId, EntityType, SslProfile};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// The ordinal of a profile that the router has not met before.
const FIRST_ORDINAL: u64 = 1;

/// How long a new set of connections gets to open before the ones that it replaces may be closed.
const OPENING: Duration = Duration::from_secs(5);

/// What the router accepted.
#[derive(Default)]
pub(crate) struct Record {
    in_force: BTreeMap<String, InForce>,
}

struct InForce {
    version: String,
    profile: SslProfile,
    /// When the version came into force.
    since: Instant,
    /// The ordinal before that: connections that are older may be closed once the new ones are open.
    previous: u64,
}

impl InForce {
    /// Whether the connections with this version had the time to open.
    fn is_open(&self, now: Instant) -> bool {
        now >= self.since + OPENING
    }

    fn ordinal(&self) -> u64 {
        self.profile.ordinal.unwrap_or(0)
    }

    fn oldest_valid_ordinal(&self) -> u64 {
        self.profile.oldest_valid_ordinal.unwrap_or(0)
    }
}

impl Record {
    /// Notes that the router accepted a profile.
    pub(crate) fn accept(&mut self, store: &Store, profile: &SslProfile, now: Instant) {
        let Some(version) = store.version_of(profile) else {
            return;
        };
        let (since, previous) = match self.in_force.get(&profile.name) {
            Some(last) if last.version == version => (last.since, last.previous),
            Some(last) => (now, last.ordinal()),
            None => (now, profile.ordinal.unwrap_or(0).saturating_sub(1)),
        };
        let in_force = InForce {
            version,
            profile: profile.clone(),
            since,
            previous,
        };
        self.in_force.insert(profile.name.clone(), in_force);
    }

    /// Notes that the router lost a profile.
    pub(crate) fn forget(&mut self, profile: &str) {
        self.in_force.remove(profile);
    }

    /// Forgets profiles that the router has no more: somebody else may have deleted them.
    pub(crate) fn keep(&mut self, live: &Live) {
        self.in_force.retain(|name, _| {
            let id = EntityId::new(EntityType::SslProfile, name);
            live.get(&id).is_some()
        });
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
    now: Instant,
}

impl<'a> Choice<'a> {
    /// Of what is on disk, for this router.
    pub(crate) fn new(
        record: &'a Record,
        desired: &'a Desired,
        store: &'a Store,
        live: &'a Live,
        now: Instant,
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
            now,
        }
    }

    /// What the router should have of a profile now: the best that was not refused lately, with its
    /// ordinals. None if there is nothing: then its users wait.
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
    /// A router that has not met the profile gets what one took into use last, and the newest after
    /// that: an UPDATE of a profile in use is the only request by which a router judges files and
    /// keeps the old ones if they are bad.
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

    /// When connections of an older version are to be closed next.
    pub(crate) fn next_retirement(&self) -> Option<Instant> {
        let in_force = self.record.in_force.iter();
        in_force
            .filter(|(name, it)| self.may_close(name) && it.oldest_valid_ordinal() < it.previous)
            .map(|(_, it)| it.since + OPENING)
            .filter(|due| *due > self.now)
            .min()
    }

    /// A profile with the ordinals that go with its version (`facts/router.md` §6).
    ///
    /// A new version raises the ordinal, and with it the oldest valid one to the ordinal before: of
    /// the sets of connections that rotations leave, the last two stay. After a rotation that came
    /// too soon after another the older sets stay open until the new one had time to open.
    fn with_ordinals(&self, profile: SslProfile) -> SslProfile {
        let name = profile.name.as_str();
        let version = self.store.version_of(&profile);
        let in_force = self.record.in_force.get(name);
        let shown = self.shown(name);
        let (ordinal, oldest_valid_ordinal) = match (in_force, shown) {
            (Some(it), _) if Some(&it.version) == version.as_ref() => {
                let is_due = self.may_close(name) && it.is_open(self.now);
                let is_behind = it.oldest_valid_ordinal() < it.previous;
                let oldest = (is_due && is_behind).then_some(it.previous);
                (
                    it.profile.ordinal,
                    oldest.or(it.profile.oldest_valid_ordinal),
                )
            }
            (Some(it), shown) => {
                // What was refused may be shown, and its ordinal is used up.
                let last = shown
                    .and_then(|shown| shown.ordinal)
                    .max(it.profile.ordinal);
                let is_due = self.may_close(name) && it.is_open(self.now);
                let oldest = is_due.then_some(it.ordinal());
                (
                    Some(after(last)),
                    oldest.or(it.profile.oldest_valid_ordinal),
                )
            }
            (None, Some(shown)) if self.store.version_of(shown) == version => {
                (shown.ordinal, shown.oldest_valid_ordinal)
            }
            (None, Some(shown)) => (Some(after(shown.ordinal)), shown.oldest_valid_ordinal),
            (None, None) => (Some(FIRST_ORDINAL), None),
        };
        SslProfile {
            ordinal,
            oldest_valid_ordinal,
            ..profile
        }
    }

    /// Whether older connections of a profile may be closed. Those that a listener accepted would
    /// take the link down with them until the other side dials again.
    fn may_close(&self, name: &str) -> bool {
        !self.listened_with.contains(name)
    }

    /// The profile as the router shows it.
    fn shown(&self, name: &str) -> Option<&'a SslProfile> {
        match self.live.get(&EntityId::new(EntityType::SslProfile, name)) {
            Some(Entity::SslProfile(profile)) => Some(profile),
            _ => None,
        }
    }
}

fn after(ordinal: Option<u64>) -> u64 {
    ordinal.unwrap_or(0).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ReadMount;
    use crate::mount::{Files, Snapshot};
    use serde_json::{Value, json};
    use spanwire_router::credentials::{File, Profile, Profiles, digest};
    use tempfile::TempDir;
    use zeroize::Zeroizing;

    /// A store with versions of one profile, and what is desired of it.
    struct Bed {
        store: Store,
        desired: Desired,
        record: Record,
        live: Live,
        now: Instant,
        _home: TempDir,
    }

    impl Bed {
        fn new(users: &Value) -> Self {
            let home = TempDir::new().unwrap();
            let store = Store::new(home.path().to_owned());
            let mut bed = Self {
                store,
                desired: Desired::default(),
                record: Record::default(),
                live: Live::default(),
                now: Instant::now(),
                _home: home,
            };
            let json = Value::from(users.as_array().cloned().unwrap_or_default()).to_string();
            bed.see(&json, Profiles::default(), Files::new());
            bed
        }

        fn see(&mut self, config: &str, profiles: Profiles, files: Files) {
            let snapshot: Result<_, ReadMount> = Ok(Snapshot {
                revision: String::new(),
                document: spanwire_router::config::Document::parse(config.as_bytes()),
                profiles: Ok(profiles),
                files,
            });
            self.desired.take(snapshot, &self.store);
        }

        /// Puts a new version on disk and makes it the newest; the version.
        fn version(&mut self) -> String {
            let key = rcgen::KeyPair::generate().unwrap();
            let ca = rcgen::CertificateParams::default()
                .self_signed(&key)
                .unwrap()
                .pem();
            let file = File {
                key: "k".to_owned(),
                sha256: digest(ca.as_bytes()),
            };
            let profile = Profile::new(Some(file), None, None);
            let files = Files::from([("k".to_owned(), Ok(Zeroizing::new(ca.into_bytes())))]);
            self.store.take("p", &profile, &files).unwrap();
            self.desired
                .versions
                .insert("p".to_owned(), profile.version.clone());
            profile.version
        }

        fn best(&self) -> SslProfile {
            self.best_but(&[])
        }

        fn best_but(&self, refused: &[&str]) -> SslProfile {
            let choice = self.choice();
            let is_waiting =
                |_: &EntityId, form: &str| refused.iter().any(|version| form.contains(version));
            choice.best("p", is_waiting).unwrap()
        }

        fn choice(&self) -> Choice<'_> {
            Choice::new(
                &self.record,
                &self.desired,
                &self.store,
                &self.live,
                self.now,
            )
        }

        /// The router accepts what it is given.
        fn accept(&mut self, profile: &SslProfile) {
            self.record.accept(&self.store, profile, self.now);
            self.show(profile);
        }

        fn show(&mut self, profile: &SslProfile) {
            self.live = Live::new([Entity::SslProfile(profile.clone())]);
        }
    }

    fn ordinals(profile: &SslProfile) -> (Option<u64>, Option<u64>) {
        (profile.ordinal, profile.oldest_valid_ordinal)
    }

    fn connector() -> Value {
        json!([["connector", { "name": "c", "host": "h", "port": 1, "sslProfile": "p" }]])
    }

    fn listener() -> Value {
        json!([["listener", { "name": "l", "port": 1, "sslProfile": "p" }]])
    }

    #[test]
    fn each_rotation_of_a_connector_raises_both_ordinals() {
        let mut bed = Bed::new(&connector());
        let mut seen = Vec::new();
        for _ in 0..3 {
            bed.version();
            let best = bed.best();
            bed.accept(&best);
            bed.now += OPENING;
            assert_eq!(bed.best(), best, "nothing moves without a new version");
            assert_eq!(bed.choice().next_retirement(), None);
            seen.push(ordinals(&best));
        }
        assert_eq!(
            seen,
            [(Some(1), None), (Some(2), Some(1)), (Some(3), Some(2))]
        );
    }

    #[test]
    fn rotations_that_follow_at_once_close_the_older_connections_later() {
        let mut bed = Bed::new(&connector());
        let mut seen = Vec::new();
        for _ in 0..3 {
            bed.version();
            let best = bed.best();
            bed.accept(&best);
            seen.push(ordinals(&best));
        }
        assert_eq!(seen, [(Some(1), None), (Some(2), None), (Some(3), None)]);
        let due = bed.choice().next_retirement().unwrap();
        assert_eq!(due, bed.now + OPENING);
        bed.now = due;
        let best = bed.best();
        assert_eq!(ordinals(&best), (Some(3), Some(2)));
        bed.accept(&best);
        assert_eq!((bed.best(), bed.choice().next_retirement()), (best, None));
    }

    #[test]
    fn a_rotation_of_a_listener_leaves_the_oldest_ordinal_alone() {
        let mut users = listener();
        users
            .as_array_mut()
            .unwrap()
            .extend(connector().as_array().cloned().unwrap());
        for users in [listener(), users] {
            let mut bed = Bed::new(&users);
            for ordinal in 1..4 {
                bed.version();
                let best = bed.best();
                assert_eq!(ordinals(&best), (Some(ordinal), None));
                bed.accept(&best);
                bed.now += OPENING;
                assert_eq!((bed.best(), bed.choice().next_retirement()), (best, None));
            }
        }
    }

    #[test]
    fn a_refused_version_leaves_the_whole_old_triple() {
        let mut bed = Bed::new(&connector());
        bed.version();
        let good = bed.best();
        bed.accept(&good);
        bed.now += OPENING;
        let refused = bed.version();
        // The router shows what it refused.
        bed.show(&bed.best());
        assert_eq!(bed.best_but(&[&refused]), good);
        // Another version is given an ordinal that was not shown before, and what is in use stays.
        bed.version();
        assert_eq!(ordinals(&bed.best()), (Some(3), Some(1)));
    }

    #[test]
    fn an_adaptor_that_restarts_sends_the_same_again() {
        let mut bed = Bed::new(&connector());
        bed.version();
        bed.accept(&bed.best());
        bed.now += OPENING;
        bed.version();
        let best = bed.best();
        bed.accept(&best);
        bed.record = Record::default();
        assert_eq!(bed.best(), best);
        assert!(bed.record.doubted(&bed.live).contains("p"));
        // It missed a rotation, and cannot know whether what is shown was ever in use.
        bed.version();
        assert_eq!(ordinals(&bed.best()), (Some(3), Some(1)));
        bed.accept(&bed.best());
        bed.now += OPENING;
        assert_eq!(ordinals(&bed.best()), (Some(3), Some(2)));
    }

    #[test]
    fn a_new_router_gets_what_was_in_use_first_and_the_newest_then() {
        let mut bed = Bed::new(&connector());
        let proven = bed.version();
        bed.store.set_current("p", &proven).unwrap();
        let newest = bed.version();
        let first = bed.best();
        assert_eq!(bed.store.version_of(&first), Some(proven));
        bed.accept(&first);
        let second = bed.best();
        assert_eq!(bed.store.version_of(&second), Some(newest));
        assert_eq!((first.ordinal, second.ordinal), (Some(1), Some(2)));
    }

    #[test]
    fn attributes_of_the_configuration_are_added_and_its_paths_are_not() {
        let mut users = connector();
        users.as_array_mut().unwrap().push(json!(["sslProfile", {
            "name": "p", "caCertFile": "/upstream/ca.crt", "protocols": "TLSv1.3", "password": "x"
        }]));
        let mut bed = Bed::new(&users);
        bed.version();
        let best = bed.best();
        assert_eq!(best.protocols.as_deref(), Some("TLSv1.3"));
        assert_eq!(best.other.get("password"), Some(&json!("x")));
        assert!(!best.ca_cert_file.unwrap().contains("upstream"));
    }
}
