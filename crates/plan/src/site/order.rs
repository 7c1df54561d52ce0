//! In which order are credentials and configuration written?
//!
//! The law: while a Site lives, each profile that a stored configuration names is in the stored Secret, complete. So the
//! Secret grows before a configuration names more, and shrinks after none names what goes. Objects of two kinds are
//! seen by two watches, and either may be behind: where the safety of a write rests on an object that this pass does
//! not write, a *fence* goes before it, a write of that object that changes nothing and is refused if it is not the one
//! that was seen.

use std::collections::{BTreeMap, BTreeSet};

use spanwire_router::config::{BOOTSTRAP_FILE, Document};
use spanwire_router::credentials::{digest, revision};

use crate::names;
use crate::plan::{Act, Child, Content, Env, ObjectKind, Ref};
use crate::settle::{Settling, fence, settle};
use crate::site::claims::Claims;
use crate::site::config;
use crate::site::credentials::{Credentials, Unclaimed};
use crate::site::shape::Shape;
use crate::world::World;

/// What the routers are to be told.
pub(crate) struct Told {
    /// All files that they use.
    pub(crate) credentials: Credentials,
    /// One document a group.
    pub(crate) configs: Vec<Config>,
    /// Whether the Secret forgets a profile, which it may only while the stored configurations are those seen.
    shrinks: bool,
}

/// What one router is to be told.
pub(crate) struct Config {
    /// The ConfigMap.
    pub(crate) child: Child,
    /// What its adaptor reports once it has seen all of it.
    pub(crate) revision: String,
    /// The profiles that it names.
    profiles: BTreeSet<String>,
}

impl Told {
    /// A profile that nobody claims any more is forgotten only where every stored configuration is the wanted one.
    pub(crate) fn of(
        claims: &Claims<'_>,
        shape: &Shape<'_>,
        world: &World,
        env: &Env<'_>,
    ) -> Self {
        let wanted = |unclaimed| Credentials::wanted(claims, shape, world, env.now, unclaimed);
        let grown = wanted(Unclaimed::Keep);
        let shrunk = wanted(Unclaimed::Forget);
        let configs = configs(shape, claims, &grown, env);
        let shrinks = grown.profiles != shrunk.profiles
            && are_settled(&configs, world)
            && second_router(shape, world).is_empty();
        if !shrinks {
            return Self { credentials: grown, configs, shrinks };
        }
        // Room that is free now may let in what did not fit before.
        let configs = self::configs(shape, claims, &shrunk, env);
        Self { credentials: shrunk, configs, shrinks }
    }

    /// The writes of the Secret, behind those that must succeed before it.
    pub(crate) fn credentials(&self, shape: &Shape<'_>, world: &World) -> (Vec<Act>, Settling) {
        let child = self.credentials.child(shape);
        let settling = settle([child.clone()], world);
        let fences: Vec<Act> = if self.shrinks {
            // The names in the way of a fence are the same as before: the configurations are settled.
            self.configs.iter().filter_map(|config| fence(config.stored(world)?, world)).collect()
        } else if settling == Settling::default() && self.name_more(world) {
            fence(child, world).into_iter().collect()
        } else {
            Vec::new()
        };
        (fences, settling)
    }

    /// Whether a configuration names a profile that its stored one does not.
    fn name_more(&self, world: &World) -> bool {
        self.configs.iter().any(|config| {
            let stored = world.config_maps.get(config.child.name());
            let named = stored.and_then(|stored| stored.profiles_named.as_ref());
            named.is_none_or(|named| !config.profiles.is_subset(named))
        })
    }

    /// The revision that the pods of a group should report.
    pub(crate) fn revision(&self, group: &str) -> Option<String> {
        let config = self.configs.iter().find(|config| config.child.name() == group)?;
        Some(config.revision.clone())
    }
}

impl Config {
    /// Digest of what the router process reads at its start.
    pub(crate) fn bootstrap(&self) -> String {
        match self.child.data.get(BOOTSTRAP_FILE) {
            Some(Content::Text(text)) => digest(text.as_bytes()),
            _ => String::new(),
        }
    }

    /// What is stored of it, in bytes.
    pub(crate) fn size(&self) -> usize {
        let length = |content: &Content| match content {
            Content::Text(text) => text.len(),
            Content::Copy(_) => 0,
        };
        self.child.data.iter().map(|(key, content)| key.len() + length(content)).sum()
    }
}
