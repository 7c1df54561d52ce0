//! What is known of one namespace, and what is being read for it?
//!
//! Plain data under the stores' lock. Every change of the World brings the set of wanted bodies up to date in the same
//! step, so no pass ever sees an object whose Secret nobody has asked for yet.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use spanwire_plan::plan::ObjectKind;
use spanwire_plan::world::{GrantServer, Named};
use spanwire_plan::{World, kinds, labels};

use super::bodies::{Body, Facts};
use super::{Kept, Stored};

#[derive(Default)]
pub(super) struct Space {
    pub(super) world: Arc<World>,
    /// Secrets and ConfigMaps whose content some object depends on.
    wanted: BTreeSet<Kept>,
    /// Those of them that are being read.
    reading: BTreeSet<Kept>,
    /// Objects whose pass came while something was being read.
    deferred: BTreeSet<Kept>,
    /// The resourceVersion of each Secret and ConfigMap, as its watch tells it.
    revisions: HashMap<Kept, String>,
}

/// What is left to do once the lock is free.
#[derive(Default)]
pub(super) struct Errand {
    /// Whether the World has changed.
    pub(super) is_news: bool,
    /// uid of an object that is gone.
    pub(super) gone: Option<String>,
    /// Bodies to read, at these revisions.
    pub(super) reads: Vec<(Kept, String)>,
    /// Objects whose pass had to wait and need not wait any longer.
    pub(super) woken: BTreeSet<Kept>,
}

impl Space {
    pub(super) fn new(namespace: &str, grant_server: GrantServer) -> Self {
        let world = World {
            namespace: namespace.to_owned(),
            grant_server,
            ..World::default()
        };
        Self {
            world: Arc::new(world),
            ..Self::default()
        }
    }

    /// Whether nothing is known of the namespace.
    pub(super) fn is_bare(&self) -> bool {
        self.revisions.is_empty() && self.world.is_bare()
    }

    /// Whether a pass may begin; if not, the object is woken when it may.
    pub(super) fn admits(&mut self, object: Kept) -> bool {
        let is_quiet = self.reading.is_empty();
        if !is_quiet {
            self.deferred.insert(object);
        }
        is_quiet
    }

    /// Whether this body is still waited for.
    pub(super) fn awaits(&self, body: &Kept) -> bool {
        self.reading.contains(body)
    }

    /// The Secrets or ConfigMaps that the watch has told of.
    pub(super) fn seen(&self, kind: ObjectKind) -> impl Iterator<Item = &String> {
        let of_kind = self.revisions.keys().filter(move |(seen, _)| *seen == kind);
        of_kind.map(|(_, name)| name)
    }

    /// Takes in an object. One that is known at this resourceVersion is no news.
    pub(super) fn keep<K: Stored>(&mut self, object: K) -> Errand {
        let metadata = object.metadata();
        let name = metadata.name.clone().unwrap_or_default();
        let known = K::of(&self.world).get(&name);
        let known_metadata = known.map(Named::metadata);
        let is_known = known_metadata.is_some_and(|known| {
            known.resource_version.is_some() && known.resource_version == metadata.resource_version
        });
        if is_known {
            return Errand::default();
        }
        // Another object under a name that is known: the old one's going was missed.
        let gone = known_metadata
            .and_then(|known| known.uid.clone())
            .filter(|uid| metadata.uid.as_ref() != Some(uid));
        let names_the_same = known.is_some_and(|known| known.references() == object.references());
        K::objects(Arc::make_mut(&mut self.world)).insert(object);
        if names_the_same {
            self.news(gone)
        } else {
            self.changed(gone)
        }
    }

    /// Lets go of an object.
    pub(super) fn forget<K: Stored>(&mut self, name: &str) -> Errand {
        let Some(known) = K::of(&self.world).get(name) else {
            return Errand::default();
        };
        let gone = known.metadata().uid.clone();
        let world = Arc::make_mut(&mut self.world);
        K::objects(world).0.remove(name);
        if let Some(uid) = &gone {
            world.attempts.remove(uid);
        }
        self.changed(gone)
    }

    /// Changes something else in the World.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut World)) -> Errand {
        change(Arc::make_mut(&mut self.world));
        self.changed(None)
    }

    /// A watch has seen a Secret or ConfigMap.
    pub(super) fn see(&mut self, key: Kept, revision: String) -> Errand {
        self.revisions.insert(key.clone(), revision.clone());
        let known = match key.0 {
            ObjectKind::Secret => self.world.secrets.get(&key.1).map(|facts| &facts.metadata),
            _ => self
                .world
                .config_maps
                .get(&key.1)
                .map(|facts| &facts.metadata),
        };
        let is_known =
            known.is_some_and(|known| known.resource_version.as_ref() == Some(&revision));
        let mut errand = Errand::default();
        if self.wanted.contains(&key) && !is_known && self.reading.insert(key.clone()) {
            errand.reads.push((key, revision));
        }
        errand
    }

    /// A Secret or ConfigMap is gone, by its watch or because a read did not find it.
    pub(super) fn lose(&mut self, key: &Kept) -> Errand {
        self.revisions.remove(key);
        self.reading.remove(key);
        Errand {
            is_news: self.drop_facts(key),
            woken: self.quiet(),
            ..Errand::default()
        }
    }

    /// Takes in what a read brought. A body that is not waited for any more (it was deleted meanwhile, or nobody names it
    /// now) is let go of.
    pub(super) fn learn(&mut self, body: &Body, facts: Facts) -> Errand {
        let key = (body.kind, body.name.clone());
        if !self.reading.contains(&key) {
            return Errand::default();
        }
        let world = Arc::make_mut(&mut self.world);
        let read = match facts {
            Facts::Secret(facts) => {
                let revision = facts.metadata.resource_version.clone();
                world.secrets.insert(facts);
                revision
            }
            Facts::ConfigMap(facts) => {
                let revision = facts.metadata.resource_version.clone();
                world.config_maps.insert(facts);
                revision
            }
        };
        // Seen at another revision than was asked for, and not at the one that was read: read again.
        let newer = self
            .revisions
            .get(&key)
            .filter(|seen| **seen != body.revision && Some(*seen) != read.as_ref());
        if let Some(newer) = newer {
            return Errand {
                reads: vec![(key, newer.clone())],
                ..Errand::default()
            };
        }
        self.reading.remove(&key);
        Errand {
            is_news: true,
            woken: self.quiet(),
            ..Errand::default()
        }
    }

    /// Brings the wanted bodies up to date with what the objects name.
    fn changed(&mut self, gone: Option<String>) -> Errand {
        let mut wanted = kinds::references(&self.world);
        if !self.world.is_bare() {
            wanted.insert((ObjectKind::ConfigMap, labels::CONTROL_CONFIG_MAP.to_owned()));
        }
        let before = std::mem::replace(&mut self.wanted, wanted);
        let dropped: Vec<Kept> = before.difference(&self.wanted).cloned().collect();
        for key in &dropped {
            self.reading.remove(key);
            self.drop_facts(key);
        }
        let new: Vec<Kept> = self.wanted.difference(&before).cloned().collect();
        let mut reads = Vec::new();
        for key in new {
            if let Some(revision) = self.revisions.get(&key).cloned()
                && self.reading.insert(key.clone())
            {
                reads.push((key, revision));
            }
        }
        Errand {
            reads,
            ..self.news(gone)
        }
    }

    fn news(&mut self, gone: Option<String>) -> Errand {
        Errand {
            is_news: true,
            gone,
            woken: self.quiet(),
            ..Errand::default()
        }
    }

    fn drop_facts(&mut self, (kind, name): &Kept) -> bool {
        let world = Arc::make_mut(&mut self.world);
        match kind {
            ObjectKind::Secret => world.secrets.0.remove(name).is_some(),
            _ => world.config_maps.0.remove(name).is_some(),
        }
    }

    /// Those who waited, if nothing is being read any more.
    fn quiet(&mut self) -> BTreeSet<Kept> {
        if self.reading.is_empty() {
            std::mem::take(&mut self.deferred)
        } else {
            BTreeSet::new()
        }
    }
}
