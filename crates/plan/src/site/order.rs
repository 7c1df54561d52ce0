//! In which order are credentials and configuration written?
//!
//! The law: while a Site lives, each profile that a stored configuration names is in the stored Secret, complete. So the
//! Secret grows before a configuration names more, and shrinks after none names what goes. Objects of two kinds are
//! seen by two watches, and either may be behind: where the safety of a write rests on an object that this pass does
//! not write, a *fence* goes before it, a write of that object that changes nothing and is refused if it is not the one
//! that was seen.

use std::collections::BTreeSet;

use spanwire_router::config::BOOTSTRAP_FILE;
use spanwire_router::credentials::{digest, revision};

use crate::env::Env;
use crate::names;
use crate::plan::{Act, Child, Content, ObjectKind, Ref};
use crate::settle::{Settling, fence, settle};
use crate::site::claims::Claims;
use crate::site::config;
use crate::site::credentials::{Credentials, Unclaimed};
use crate::site::shape::Shape;
use crate::world::World;

/// What the routers are to be told, and how it is written.
pub(crate) struct Told {
    /// To be done before all else.
    pub(crate) fences: Vec<Act>,
    /// Then the Secret.
    pub(crate) credentials: Settling,
    /// Then one document a group.
    pub(crate) configs: Vec<Config>,
    /// Profiles whose newest version does not fit into the Secret.
    pub(crate) left_out: Vec<String>,
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
    pub(crate) fn of(claims: &Claims<'_>, shape: &Shape<'_>, world: &World, env: &Env<'_>) -> Self {
        let wanted = |unclaimed| Credentials::wanted(claims, shape.site, world, env.now, unclaimed);
        let grown = wanted(Unclaimed::Keep);
        let shrunk = wanted(Unclaimed::Forget);
        let configs = configs(shape, claims, &grown, env);
        if grown.profiles != shrunk.profiles
            && are_settled(&configs, world)
            && second_router(shape, world).is_empty()
        {
            let credentials = settle([shrunk.child(shape)], world);
            let fences = configs
                .into_iter()
                .filter_map(|config| fence(config.child, world))
                .filter(|_| !credentials.acts.is_empty());
            return Self {
                fences: fences.collect(),
                credentials,
                // Room that is free now may let in what did not fit before.
                configs: self::configs(shape, claims, &shrunk, env),
                left_out: shrunk.left_out,
            };
        }
        let child = grown.child(shape);
        let credentials = settle([child.clone()], world);
        let rests_on_stored = credentials == Settling::default() && name_more(&configs, world);
        let fence = if rests_on_stored {
            fence(child, world)
        } else {
            None
        };
        Self {
            fences: fence.into_iter().collect(),
            credentials,
            configs,
            left_out: grown.left_out,
        }
    }

    /// The revision that the pods of a group should report.
    pub(crate) fn revision(&self, group: &str) -> Option<String> {
        let config = self
            .configs
            .iter()
            .find(|config| config.child.name() == group)?;
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
        self.child
            .data
            .iter()
            .map(|(key, content)| key.len() + length(content))
            .sum()
    }
}

fn configs(
    shape: &Shape<'_>,
    claims: &Claims<'_>,
    credentials: &Credentials,
    env: &Env<'_>,
) -> Vec<Config> {
    let bootstrap = config::bootstrap(shape, env);
    let profiles = credentials.profiles.to_json();
    let config = |group: &&str| {
        let document = config::document(group, &bootstrap, claims, credentials);
        Config {
            revision: revision(profiles.as_bytes(), document.to_json().as_bytes()),
            profiles: document
                .profile_names()
                .into_iter()
                .map(str::to_owned)
                .collect(),
            child: config::config_map(group, shape, &bootstrap, &document),
        }
    };
    shape.groups().iter().map(config).collect()
}

/// Whether a configuration that is to be written names a profile that the stored one does not. A stranger's under its
/// name is not written.
fn name_more(configs: &[Config], world: &World) -> bool {
    let is_written = |config: &&Config| !settle([config.child.clone()], world).acts.is_empty();
    configs.iter().filter(is_written).any(|config| {
        let stored = world.config_maps.get(config.child.name());
        let named = stored.and_then(|stored| stored.profiles_named.as_ref());
        named.map_or(!config.profiles.is_empty(), |named| {
            !config.profiles.is_subset(named)
        })
    })
}

/// Whether the stored configurations are the wanted ones, and are to stay.
fn are_settled(configs: &[Config], world: &World) -> bool {
    let children = configs.iter().map(|config| config.child.clone());
    let is_going = |config: &Config| {
        world
            .live(config.child.kind, config.child.name())
            .is_some_and(|live| live.metadata.deletion_timestamp.is_some())
    };
    settle(children, world) == Settling::default() && !configs.iter().any(is_going)
}

/// The removal of a second router that is not wanted: first what runs, then what it ran on.
pub(crate) fn second_router(shape: &Shape<'_>, world: &World) -> Vec<Act> {
    if shape.ha {
        return Vec::new();
    }
    let (namespace, name) = (shape.namespace.to_owned(), names::ROUTER_2.to_owned());
    [ObjectKind::Deployment, ObjectKind::ConfigMap]
        .into_iter()
        .filter_map(|kind| {
            let live = world.deletable(kind, &name, &shape.site.metadata)?;
            Some(Act::Delete(
                Ref {
                    kind,
                    namespace: namespace.clone(),
                    name: name.clone(),
                },
                live,
            ))
        })
        .collect()
}
