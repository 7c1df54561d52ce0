//! Which changes turn a running router into the one that is wanted, and in which order?
//!
//! A router is changed one entity at a time, each change may be refused, and the connection may be
//! lost after any of them. So the order is such that after every single step the router is valid,
//! no link was cut that could have stayed, and a new diff from there still arrives. What may not be
//! compared is as important as what must: one false difference deletes and re-creates a connector,
//! and with it goes a link and every stream on it (`facts/order.md` C7).

use crate::entity::{Entity, EntityId, EntityType, SslProfile};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

mod equal;

pub use equal::matches;

/// Listeners of the bootstrap document, which nobody touches afterwards: the adaptor's own way in,
/// and the probes'.
pub const BOOTSTRAP_LISTENERS: [&str; 2] = ["amqp", "@9090"];

/// Entities whose name begins so belong to the router's own start script.
const AUTO_MESH: &str = "auto-mesh";

/// Whether an entity is changed on a running router. The others are fixed when the process starts,
/// or somebody else's.
pub fn is_managed(id: &EntityId) -> bool {
    if id.name.starts_with(AUTO_MESH) {
        return false;
    }
    match id.entity_type {
        EntityType::SslProfile | EntityType::Connector => true,
        EntityType::Listener => !BOOTSTRAP_LISTENERS.contains(&id.name.as_str()),
        EntityType::Router | EntityType::Address | EntityType::Log | EntityType::Site => false,
    }
}

/// What a router should have. It borrows what a document says: a router may have thousands of
/// entities, and this is made anew for each pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted<'a> {
    entities: BTreeMap<EntityId, Cow<'a, Entity>>,
    held: BTreeSet<EntityId>,
}

impl<'a> Wanted<'a> {
    /// The listeners and connectors of a document's entities, with profiles as they are on disk.
    ///
    /// A document names profiles and cannot know where a good version of one lies, so its own
    /// `sslProfile` entries are not looked at. A user of a profile that is neither here nor in the
    /// router waits: what the router has under its name stays as it is.
    pub fn new(entities: &'a [Entity], profiles: impl IntoIterator<Item = SslProfile>) -> Self {
        let users = entities
            .iter()
            .filter(|entity| is_user(entity.entity_type()))
            .map(Cow::Borrowed);
        let profiles = profiles
            .into_iter()
            .map(|profile| Cow::Owned(Entity::SslProfile(profile)));
        let all = users
            .chain(profiles)
            .filter_map(|entity| entity.id().map(|id| (id, entity)))
            .filter(|(id, _)| is_managed(id))
            .collect();
        Self {
            entities: all,
            held: BTreeSet::new(),
        }
    }

    /// Leaves these exactly as they are for now: each was refused not long ago, and will be tried
    /// again.
    #[must_use]
    pub fn holding(mut self, held: impl IntoIterator<Item = EntityId>) -> Self {
        self.held.extend(held);
        self
    }

    /// The entity of this name that is wanted.
    pub fn get(&self, id: &EntityId) -> Option<&Entity> {
        self.entities.get(id).map(Cow::as_ref)
    }

    /// All that is wanted, profiles first.
    pub fn iter(&self) -> impl Iterator<Item = (&EntityId, &Entity)> {
        self.entities
            .iter()
            .map(|(id, entity)| (id, entity.as_ref()))
    }
}

/// What a router has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Live {
    entities: BTreeMap<EntityId, Entity>,
    unproven: BTreeSet<String>,
}

impl Live {
    /// What the router answered: everything, managed or not, since all names are taken.
    pub fn new(entities: impl IntoIterator<Item = Entity>) -> Self {
        let entities = entities
            .into_iter()
            .filter_map(|entity| entity.id().map(|id| (id, entity)))
            .collect();
        Self {
            entities,
            unproven: BTreeSet::new(),
        }
    }

    /// Marks profiles that the router is not known to have accepted as it shows them: after a
    /// refused UPDATE it shows the bad values all the same (`facts/router.md` §3). Each is sent
    /// again once.
    #[must_use]
    pub fn doubting(mut self, profiles: impl IntoIterator<Item = String>) -> Self {
        self.unproven.extend(profiles);
        self
    }

    /// The entity of this name in the router.
    pub fn get(&self, id: &EntityId) -> Option<&Entity> {
        self.entities.get(id)
    }

    /// All that the router has.
    pub fn iter(&self) -> impl Iterator<Item = (&EntityId, &Entity)> {
        self.entities.iter()
    }

    /// Notes what the router answered when it was asked for one entity: none, if it has none of that
    /// name.
    pub fn learn(&mut self, id: EntityId, entity: Option<Entity>) {
        match entity {
            Some(entity) => self.entities.insert(id, entity),
            None => self.entities.remove(&id),
        };
    }

    /// What the router has after a change that it accepted.
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Create(entity) => {
                if let Some(id) = entity.id() {
                    self.settle(&id);
                    self.entities.insert(id, entity.clone());
                }
            }
            Change::Update(profile) => {
                let id = EntityId::new(EntityType::SslProfile, &profile.name);
                self.settle(&id);
                if let Some(Entity::SslProfile(live)) = self.entities.get_mut(&id) {
                    update(live, profile);
                }
            }
            Change::Delete(id) => {
                self.settle(id);
                self.entities.remove(id);
            }
        }
    }

    fn settle(&mut self, id: &EntityId) {
        if id.entity_type == EntityType::SslProfile {
            self.unproven.remove(&id.name);
        }
    }
}

/// What an UPDATE does to a profile: what may be absent is named all the same, so that it is absent
/// afterwards.
fn update(live: &mut SslProfile, wanted: &SslProfile) {
    let SslProfile {
        name: _,
        ca_cert_file,
        cert_file,
        private_key_file,
        ordinal,
        oldest_valid_ordinal,
        protocols,
        ciphers,
        other,
    } = wanted.clone();
    live.ca_cert_file = ca_cert_file;
    live.cert_file = cert_file;
    live.private_key_file = private_key_file;
    live.ordinal = ordinal.or(live.ordinal);
    live.oldest_valid_ordinal = oldest_valid_ordinal.or(live.oldest_valid_ordinal);
    live.protocols = protocols;
    live.ciphers = ciphers;
    live.other.extend(other);
}

/// One management request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The router gets an entity that it lacks.
    Create(Entity),
    /// A profile gets other files or ordinals. Nothing else can be updated (`facts/router.md` §3).
    /// A file, or `protocols` or `ciphers`, that is absent here must be sent as null: what an
    /// UPDATE does not name the router keeps.
    Update(SslProfile),
    /// The router loses an entity.
    Delete(EntityId),
}

impl Change {
    /// The entity that changes.
    pub fn id(&self) -> EntityId {
        match self {
            Self::Create(entity) => {
                EntityId::new(entity.entity_type(), entity.name().unwrap_or_default())
            }
            Self::Update(profile) => EntityId::new(EntityType::SslProfile, &profile.name),
            Self::Delete(id) => id.clone(),
        }
    }
}

/// The changes that are needed, in a safe order. Empty when the router has what is wanted.
///
/// 1. Connectors and listeners that are not wanted go: that frees names, ports and profiles. So do
///    those whose profile was deleted under them.
/// 2. Profiles that nothing uses or wants go, which frees names.
/// 3. Profiles are created, and updated in one request each.
/// 4. Connectors that differ are replaced one by one, each gone for one round trip. Listeners that
///    differ all go before the first comes back, since they may have swapped ports.
/// 5. Profiles that step 4 set free go.
/// 6. What is missing is created.
///
/// A change that cannot be made as things stand (its profile does not exist, its name is taken by
/// something held) is left out, with whatever depends on it; the rest is not touched by that.
pub fn diff(wanted: &Wanted<'_>, live: &Live) -> Vec<Change> {
    let mut walk = Walk::new(wanted, live);
    walk.delete_unwanted_users();
    walk.delete_unused_profiles();
    walk.create_and_update_profiles();
    walk.replace_connectors();
    walk.replace_listeners();
    walk.delete_unused_profiles();
    walk.create_missing_users();
    walk.changes
}

const fn is_user(entity_type: EntityType) -> bool {
    matches!(entity_type, EntityType::Connector | EntityType::Listener)
}

/// The router as it will be after the changes so far.
struct Walk<'a> {
    wanted: &'a Wanted<'a>,
    live: &'a Live,
    /// Profiles that some wanted entity names, whether or not it can have it yet.
    named: BTreeSet<&'a str>,
    /// Every name in the router, with its type.
    names: BTreeMap<&'a str, EntityType>,
    /// Profile → how many entities of the router use it.
    uses: BTreeMap<&'a str, usize>,
    changes: Vec<Change>,
}

impl<'a> Walk<'a> {
    fn new(wanted: &'a Wanted<'a>, live: &'a Live) -> Self {
        let mut uses = BTreeMap::new();
        for profile in live.entities.values().filter_map(Entity::ssl_profile) {
            *uses.entry(profile).or_default() += 1;
        }
        Self {
            wanted,
            live,
            named: wanted
                .iter()
                .filter_map(|(_, entity)| entity.ssl_profile())
                .collect(),
            names: live
                .entities
                .keys()
                .map(|id| (id.name.as_str(), id.entity_type))
                .collect(),
            uses,
            changes: Vec::new(),
        }
    }

    fn delete_unwanted_users(&mut self) {
        for (id, entity) in &self.live.entities {
            if is_user(id.entity_type)
                && self.may_touch(id)
                && (!self.wanted.entities.contains_key(id) || self.is_orphan(entity))
            {
                self.delete(id, entity);
            }
        }
    }

    /// Whether an entity's profile was deleted under it, and will be there again: it would never
    /// follow that one (`facts/router.md` §3).
    fn is_orphan(&self, entity: &Entity) -> bool {
        entity.ssl_profile().is_some_and(|profile| {
            let id = EntityId::new(EntityType::SslProfile, profile);
            !self.live.entities.contains_key(&id)
                && self.wanted.entities.contains_key(&id)
                && !self.wanted.held.contains(&id)
        })
    }

    fn delete_unused_profiles(&mut self) {
        for (id, entity) in &self.live.entities {
            let name = id.name.as_str();
            if id.entity_type == EntityType::SslProfile
                && self.may_touch(id)
                && self.has(id)
                && !self.wanted.entities.contains_key(id)
                && !self.named.contains(name)
                && self.uses.get(name).is_none_or(|count| *count == 0)
            {
                self.delete(id, entity);
            }
        }
    }

    fn create_and_update_profiles(&mut self) {
        for (id, entity) in self.wanted.iter() {
            let Entity::SslProfile(profile) = entity else {
                continue;
            };
            if !self.may_touch(id) {
                continue;
            }
            match self.live.entities.get(id) {
                None => self.create(id, entity),
                Some(live) if self.live.unproven.contains(&id.name) || !matches(entity, live) => {
                    self.changes.push(Change::Update(profile.clone()));
                }
                Some(_) => {}
            }
        }
    }

    fn replace_connectors(&mut self) {
        for (id, wanted, live) in self.replaceable(EntityType::Connector) {
            self.delete(id, live);
            self.create(id, wanted);
        }
    }

    fn replace_listeners(&mut self) {
        let replaceable = self.replaceable(EntityType::Listener);
        for (id, _, live) in &replaceable {
            self.delete(id, live);
        }
        for (id, wanted, _) in replaceable {
            self.create(id, wanted);
        }
    }

    /// Entities that differ from what is wanted and can be created at once after they are gone.
    fn replaceable(&self, entity_type: EntityType) -> Vec<(&'a EntityId, &'a Entity, &'a Entity)> {
        let of_type = self
            .wanted
            .iter()
            .filter(|(id, _)| id.entity_type == entity_type);
        of_type
            .filter_map(|(id, wanted)| self.live.entities.get(id).map(|live| (id, wanted, live)))
            .filter(|(id, wanted, live)| {
                let is_there = self.has(id) && !matches(wanted, live);
                self.may_touch(id) && self.is_possible(wanted) && is_there
            })
            .collect()
    }

    fn create_missing_users(&mut self) {
        for (id, entity) in self.wanted.iter() {
            let is_missing = !self.has(id);
            if is_user(id.entity_type)
                && is_missing
                && self.may_touch(id)
                && self.is_possible(entity)
            {
                self.create(id, entity);
            }
        }
    }

    fn may_touch(&self, id: &EntityId) -> bool {
        is_managed(id) && !self.wanted.held.contains(id)
    }

    fn has(&self, id: &EntityId) -> bool {
        self.names.get(id.name.as_str()) == Some(&id.entity_type)
    }

    fn is_possible(&self, entity: &Entity) -> bool {
        let exists = |profile| self.names.get(profile) == Some(&EntityType::SslProfile);
        entity.ssl_profile().is_none_or(exists)
    }

    /// Creates an entity, unless its name is still taken by another type's.
    fn create(&mut self, id: &'a EntityId, entity: &'a Entity) {
        if self.names.contains_key(id.name.as_str()) {
            return;
        }
        self.names.insert(&id.name, id.entity_type);
        if let Some(profile) = entity.ssl_profile() {
            *self.uses.entry(profile).or_default() += 1;
        }
        self.changes.push(Change::Create(entity.clone()));
    }

    fn delete(&mut self, id: &'a EntityId, entity: &'a Entity) {
        self.names.remove(id.name.as_str());
        if let Some(count) = entity
            .ssl_profile()
            .and_then(|profile| self.uses.get_mut(profile))
        {
            *count = count.saturating_sub(1);
        }
        self.changes.push(Change::Delete(id.clone()));
    }
}
