//! Which credentials does the router's Secret hold?
//!
//! A flat copy of every file that the routers use, and `profiles.json` beside them. Only complete credentials get in;
//! a profile that had a good version keeps it when its Secret goes or turns bad: then the copy is taken from the
//! stored Secret itself (`design.md` §3).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use spanwire_api::Site;
use spanwire_router::credentials::{File, PROFILES_FILE, Profile, Profiles, Suffix, file_key};

use crate::certificate::source;
use crate::credential;
use crate::facts::{CA_FILE, CERTIFICATE_FILE, KEY_FILE, SecretFacts};
use crate::names;
use crate::plan::{Child, Content, Copied, ObjectKind, Source};
use crate::settle::child;
use crate::site::claims::Claims;
use crate::site::shape::Shape;
use crate::world::{World, owns};

/// How large an object may be that we write, in bytes: what etcd takes, with room for what the API server adds
/// (`facts/order.md` k).
pub(crate) const BUDGET: usize = 900 * 1024;
/// At most what one profile adds to `profiles.json`, its name apart.
const ENTRY: usize = 448;

/// The files of a credential: where it has them, and where a Secret has them.
const FILES: [(Suffix, &str); 3] = [
    (Suffix::Ca, CA_FILE),
    (Suffix::Crt, CERTIFICATE_FILE),
    (Suffix::Key, KEY_FILE),
];

/// What becomes of profiles that are stored and that nobody claims any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unclaimed {
    /// A stored configuration may still name them.
    Keep,
    /// No stored configuration does.
    Forget,
}

/// The content of the credentials Secret as it should be.
#[derive(Debug, Default)]
pub(crate) struct Credentials {
    /// What `profiles.json` says.
    pub(crate) profiles: Profiles,
    /// Profiles whose newest version does not fit in.
    pub(crate) left_out: Vec<String>,
    data: BTreeMap<String, Content>,
}

/// One version of a profile's files.
struct Version {
    profile: Profile,
    data: BTreeMap<String, Content>,
    size: usize,
}

impl Credentials {
    /// What should be stored for these claims.
    pub(crate) fn wanted(
        claims: &Claims<'_>,
        site: &Site,
        world: &World,
        now: Timestamp,
        unclaimed: Unclaimed,
    ) -> Self {
        let mut chosen = stored(site, world);
        if unclaimed == Unclaimed::Forget {
            chosen.retain(|name, _| claims.secrets.contains_key(name));
        }
        let mut credentials = Self::default();
        let mut used: usize = chosen.values().map(|version| version.size).sum();
        for name in &claims.order {
            let Some(secret) = claims.secrets.get(name) else {
                continue;
            };
            let Ok(facts) = credential::usable(world, secret, now) else {
                continue;
            };
            let Some(newest) = version(name, facts) else {
                continue;
            };
            let old = chosen.get(name);
            if old.is_some_and(|old| old.profile.version == newest.profile.version) {
                // The same bytes: the stored ones cost the workshop no read of another Secret.
                continue;
            }
            let others = used - old.map_or(0, |old| old.size);
            if others + newest.size > BUDGET {
                credentials.left_out.push(name.clone());
                continue;
            }
            used = others + newest.size;
            chosen.insert(name.clone(), newest);
        }
        for (name, version) in chosen {
            credentials.data.extend(version.data);
            credentials.profiles.0.insert(name, version.profile);
        }
        credentials
    }

    /// Whether this profile is stored, complete.
    pub(crate) fn has(&self, profile: &str) -> bool {
        self.profiles.0.contains_key(profile)
    }

    /// The Secret.
    pub(crate) fn child(&self, shape: &Shape<'_>) -> Child {
        let secret = Secret {
            metadata: shape.metadata(names::CREDENTIALS),
            type_: Some("Opaque".to_owned()),
            ..Secret::default()
        };
        let profiles = Content::Text(self.profiles.to_json());
        let mut data = self.data.clone();
        data.insert(PROFILES_FILE.to_owned(), profiles);
        Child {
            data,
            ..child(ObjectKind::Secret, &secret)
        }
    }
}

/// Whether the stored Secret holds a good version of this profile.
pub(crate) fn is_stored(profile: &str, world: &World) -> bool {
    world
        .secrets
        .get(names::CREDENTIALS)
        .is_some_and(|facts| stored_version(profile, facts).is_some())
}

/// What there is to remark on a fault in the Secret of a profile.
pub(crate) fn remark(profile: &str, world: &World) -> &'static str {
    if is_stored(profile, world) {
        "the last good version stays in force"
    } else {
        ""
    }
}

/// The good versions that our stored Secret holds.
fn stored(site: &Site, world: &World) -> BTreeMap<String, Version> {
    let Some(live) = world.secrets.get(names::CREDENTIALS) else {
        return BTreeMap::new();
    };
    if !owns(&site.metadata, &live.metadata) {
        return BTreeMap::new();
    }
    let profiles = live.profiles.iter().flat_map(|profiles| profiles.0.keys());
    profiles
        .filter_map(|name| Some((name.clone(), stored_version(name, live)?)))
        .collect()
}

/// What the stored Secret holds for a profile, if it is what its own `profiles.json` says.
fn stored_version(name: &str, live: &SecretFacts) -> Option<Version> {
    let profile = live.profiles.as_ref()?.0.get(name)?;
    profile.check().ok()?;
    let from = source(live);
    let files = [&profile.ca, &profile.crt, &profile.key];
    let mut data = BTreeMap::new();
    let mut size = ENTRY + name.len();
    for ((suffix, _), file) in FILES.into_iter().zip(files) {
        let file = file.as_ref()?;
        let facts = live
            .files
            .get(&file.key)
            .filter(|facts| facts.sha256 == file.sha256)?;
        // Another key than ours would be one that two profiles share.
        if file.key != file_key(name, suffix) {
            return None;
        }
        size += file.key.len() + facts.size;
        data.insert(file.key.clone(), copy(&from, &file.key, &file.sha256));
    }
    Some(Version {
        profile: profile.clone(),
        data,
        size,
    })
}

/// What a Secret that can be used offers for a profile.
fn version(name: &str, facts: &SecretFacts) -> Option<Version> {
    let from = source(facts);
    let mut data = BTreeMap::new();
    let mut size = ENTRY + name.len();
    let mut files = Vec::with_capacity(FILES.len());
    for (suffix, file) in FILES {
        let found = facts.files.get(file)?;
        let key = file_key(name, suffix);
        size += key.len() + found.size;
        data.insert(key.clone(), copy(&from, file, &found.sha256));
        files.push(Some(File {
            key,
            sha256: found.sha256.clone(),
        }));
    }
    let [ca, crt, key] = <[Option<File>; 3]>::try_from(files).ok()?;
    Some(Version {
        profile: Profile::new(ca, crt, key),
        data,
        size,
    })
}

fn copy(from: &Source, file: &str, sha256: &str) -> Content {
    Content::Copy(Copied {
        from: from.clone(),
        file: file.to_owned(),
        sha256: sha256.to_owned(),
    })
}
