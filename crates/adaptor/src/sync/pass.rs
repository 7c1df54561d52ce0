//! What is done in one pass?
//!
//! From what the router is known to have, make one change after the other, believe only its answers,
//! and read back. A refusal is noted and the way to what is wanted is computed anew without it, so it
//! costs its own entity and what depends on that.

use super::record::Choice;
use super::refusal::{REMOVAL, form};
use super::{Sync, probe};
use crate::error::AskRouter;
use crate::management::Management;
use spanwire_router::diff::{Change, Live, Wanted, diff, is_managed, matches};
use spanwire_router::entity::{Entity, EntityId, EntityType, Listener};
use spanwire_router::report::{Refused, reason};
use std::collections::{BTreeMap, BTreeSet};
use tokio::time::Instant;
use tracing::{info, warn};

/// Changes of one entity in one pass: created or replaced, rotated, refused and put back make five.
/// More are a circle.
const MAX_CHANGES: u32 = 8;

impl Sync {
    /// Brings the router to what is wanted, as far as it lets us.
    ///
    /// # Errors
    /// The connection is lost or in doubt.
    pub(super) async fn pass(&mut self, router: &mut Management) -> Result<(), AskRouter> {
        let now = Instant::now();
        self.settled = false;
        let mut is_fresh = !self.knows_live;
        if is_fresh {
            self.read_live(router).await?;
        }
        if !self.desired.is_known() {
            return Ok(());
        }
        let mut touched = BTreeSet::new();
        let mut made: BTreeMap<EntityId, u32> = BTreeMap::new();
        loop {
            if !self.wholly_wanted().is_subset(&self.whole) {
                self.read_live(router).await?;
                is_fresh = true;
            }
            self.give_up_stale(now);
            let changes = diff(&self.wanted(now), &self.live);
            if changes.is_empty() {
                break;
            }
            // A profile may have got users that are not ours.
            if !is_fresh && changes.iter().any(ends_profile) {
                self.read_live(router).await?;
                is_fresh = true;
                continue;
            }
            for change in changes {
                touched.insert(change.id());
                let count = made.entry(change.id()).or_default();
                *count += 1;
                if *count > MAX_CHANGES {
                    self.shelve(&change, "it was changed again and again");
                    break;
                }
                if !self.make(router, &change).await? {
                    break;
                }
                if self.mount.has_changed() {
                    self.read_mount();
                    // What is wanted anew is not changed again.
                    made.clear();
                    break;
                }
            }
        }
        if !touched.is_empty() {
            self.read_back(router, touched).await?;
            self.compare(now);
        }
        self.refusals.expire(now);
        self.retirement = self.choice(now).next_retirement();
        self.waiting = self.left_over(now);
        self.begin_links();
        self.listeners = open_listeners(&self.live);
        self.has_ours = self.live.iter().any(|(id, _)| is_managed(id));
        self.settled = true;
        self.health.set_ready(true);
        self.remember();
        Ok(())
    }

    /// Takes back listeners of the router whose port is not open: an adaptor may have been stopped
    /// before it looked.
    pub(super) async fn close_listeners_without_port(
        &mut self,
        router: &mut Management,
    ) -> Result<(), AskRouter> {
        let managed = self.live.iter().filter(|(id, _)| is_managed(id));
        let listeners = managed.filter_map(|(id, entity)| match entity {
            Entity::Listener(listener) => Some((id.clone(), listener.clone())),
            _ => None,
        });
        let ports = probe::Ports::read();
        for (id, listener) in listeners.collect::<Vec<_>>() {
            let is_open = ports.as_ref().is_some_and(|ports| ports.have(&listener));
            if !is_open && !probe::opens(&listener).await {
                let removal = Change::Delete(id.clone());
                match self.health.during(router.change(&removal, 0)).await {
                    Ok(()) => {
                        self.live.apply(&removal);
                        warn!(listener = id.name, "Deleted a listener without a port");
                    }
                    Err(AskRouter::Refuse {
                        status,
                        description,
                    }) => {
                        warn!(
                            listener = id.name,
                            status, description, "Kept a listener without a port"
                        );
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// What the router should have at this time, with what was refused lately left as it is.
    fn wanted(&self, now: Instant) -> Wanted<'_> {
        let is_waiting = |id: &EntityId, form: &str| self.refusals.is_waiting(id, form, now);
        let choice = self.choice(now);
        let names = self.desired.profile_names().into_iter();
        let profiles = names.filter_map(|name| choice.best(name, is_waiting));
        let wanted = Wanted::new(self.desired.entities(), profiles);
        let users = wanted
            .iter()
            .filter(|(id, _)| id.entity_type != EntityType::SslProfile);
        let refused =
            users.filter(|(id, entity)| self.refusals.has(id) && is_waiting(id, &form(entity)));
        let kept = self.live.iter().filter(|(id, _)| is_waiting(id, REMOVAL));
        let held: Vec<EntityId> = refused
            .map(|(id, _)| id.clone())
            .chain(kept.map(|(id, _)| id.clone()))
            .collect();
        wanted.holding(held)
    }

    fn choice(&self, now: Instant) -> Choice<'_> {
        Choice::new(&self.record, &self.desired, &self.store, &self.live, now)
    }

    /// Forgets refusals of what is not wanted any more, or not in that form.
    fn give_up_stale(&mut self, now: Instant) {
        if self.refusals.is_empty() {
            return;
        }
        let (desired, live) = (&self.desired, &self.live);
        let choice = Choice::new(&self.record, desired, &self.store, live, now);
        let entities = desired.entities().iter();
        let users: BTreeMap<EntityId, &Entity> = entities
            .filter_map(|entity| Some((entity.id()?, entity)))
            .collect();
        self.refusals.keep(|id, refused| match id.entity_type {
            _ if refused == REMOVAL => live.get(id).is_some(),
            EntityType::SslProfile => choice
                .candidates(&id.name)
                .into_iter()
                .any(|profile| form(&Entity::SslProfile(profile)) == refused),
            // What the router shows as it is wanted was not refused for good.
            _ => users.get(id).is_some_and(|entity| {
                form(entity) == refused && !live.get(id).is_some_and(|live| matches(entity, live))
            }),
        });
    }

    /// Makes one change; whether the next may follow.
    async fn make(&mut self, router: &mut Management, change: &Change) -> Result<bool, AskRouter> {
        let id = change.id();
        if let Change::Create(Entity::Listener(listener)) = change
            && probe::is_taken(listener).await
        {
            self.refuse_port(listener, "something else listens on it");
            return Ok(false);
        }
        let users = match change {
            Change::Update(profile) => self.users(&profile.name),
            _ => 0,
        };
        match self.health.during(router.change(change, users)).await {
            Ok(()) => {}
            Err(AskRouter::Refuse { status: 404, .. }) if matches!(change, Change::Delete(_)) => {}
            Err(AskRouter::Refuse {
                status,
                description,
            }) => {
                self.refuse(change, format!("{description} ({status})"));
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
        self.live.apply(change);
        match change {
            Change::Create(Entity::SslProfile(profile)) | Change::Update(profile) => {
                let last = self.record.version(&profile.name).map(str::to_owned);
                self.record.accept(&self.store, profile, Instant::now());
                let version = self.record.version(&profile.name).map(str::to_owned);
                if version != last {
                    self.retry_users(&profile.name);
                }
                info!(
                    profile = profile.name,
                    version,
                    ordinal = profile.ordinal,
                    "Gave the router a credential"
                );
            }
            Change::Create(Entity::Listener(listener)) => {
                info!(
                    listener = listener.name,
                    port = listener.port,
                    "Created a listener"
                );
                if !probe::opens(listener).await {
                    return self.withdraw(router, listener).await;
                }
            }
            Change::Create(_) => {
                info!(entity = %id, "Created an entity");
            }
            Change::Delete(id) => {
                if id.entity_type == EntityType::SslProfile {
                    self.record.forget(&id.name);
                }
                info!(entity = %id, "Deleted an entity");
            }
        }
        Ok(true)
    }

    /// How many entities of the router use a profile.
    fn users(&self, profile: &str) -> u32 {
        let entities = self.live.iter();
        let users = entities.filter(|(_, entity)| entity.ssl_profile() == Some(profile));
        u32::try_from(users.count()).unwrap_or(u32::MAX)
    }

    /// Takes a listener back that got no port: the router lists it all the same.
    async fn withdraw(
        &mut self,
        router: &mut Management,
        listener: &Listener,
    ) -> Result<bool, AskRouter> {
        let removal = Change::Delete(EntityId::new(EntityType::Listener, &listener.name));
        match self.health.during(router.change(&removal, 0)).await {
            Ok(()) | Err(AskRouter::Refuse { status: 404, .. }) => self.live.apply(&removal),
            Err(AskRouter::Refuse {
                status,
                description,
            }) => {
                self.refuse(&removal, format!("{description} ({status})"));
            }
            Err(error) => return Err(error),
        }
        self.refuse_port(listener, "the router did not open it");
        Ok(false)
    }

    fn refuse_port(&mut self, listener: &Listener, why: &str) {
        let id = EntityId::new(EntityType::Listener, &listener.name);
        let form = form(&Entity::Listener(listener.clone()));
        let message = format!("port {} cannot be had: {why}", listener.port);
        self.refusals.note(id, form, reason::PORT_TAKEN, message);
    }

    fn refuse(&mut self, change: &Change, message: String) {
        // The router may have become another than it was known as.
        self.knows_live = false;
        if let Change::Update(profile) = change {
            // It goes on with the old values and shows the new ones.
            self.live = std::mem::take(&mut self.live).doubting([profile.name.clone()]);
        }
        self.refusals.note(
            change.id(),
            change_form(change),
            reason::ROUTER_REFUSED,
            message,
        );
    }

    /// Leaves alone what is made no better by trying again.
    fn shelve(&mut self, change: &Change, why: &str) {
        let live = self.live.get(&change.id());
        warn!(entity = %change.id(), why, ?live, "Left an entity alone for a while");
        let form = change_form(change);
        self.refusals
            .shelve(change.id(), form, reason::NOT_AS_WANTED, why.to_owned());
    }

    /// What was refused because of a profile's files may be accepted with others.
    fn retry_users(&mut self, profile: &str) {
        for entity in self.desired.entities() {
            if entity.ssl_profile() == Some(profile)
                && let Some(id) = entity.id()
            {
                self.refusals.forget(&id);
            }
        }
    }

    /// Compares what was read back. What the router accepted and shows otherwise is left alone: to
    /// make it anew each time would cut its link each time.
    fn compare(&mut self, now: Instant) {
        let wanted = self.wanted(now);
        let mut changes = diff(&wanted, &self.live);
        // Of a replacement the second half says in which form it is wanted.
        changes.retain(|change| !matches!(change, Change::Delete(id) if wanted.get(id).is_some()));
        for change in changes {
            if self.live.get(&change.id()).is_some() {
                self.shelve(&change, "the router accepted it and shows something else");
            } else {
                let (id, form) = (change.id(), change_form(&change));
                let message = "the router accepted it and does not show it".to_owned();
                self.refusals.note(id, form, reason::NOT_AS_WANTED, message);
            }
        }
    }

    /// What is wanted, was not refused, and is not there: its profile is missing, or its name is
    /// taken.
    fn left_over(&self, now: Instant) -> Vec<Refused> {
        let wanted = self.wanted(now);
        let missing = wanted.iter().filter(|(id, entity)| {
            let is_live = self.live.get(id).is_some_and(|live| matches(entity, live));
            !is_live && !self.refusals.has(id)
        });
        let refused = |(id, entity): (&EntityId, &Entity)| {
            let profile = entity
                .ssl_profile()
                .map(|name| EntityId::new(EntityType::SslProfile, name));
            let lacking = profile.filter(|profile| self.live.get(profile).is_none());
            let (reason, message) = match lacking {
                Some(profile) => (
                    reason::CREDENTIAL_MISSING,
                    format!(
                        "there is no good version of the credential {}",
                        profile.name
                    ),
                ),
                None => (
                    reason::NOT_AS_WANTED,
                    "another entity has its name".to_owned(),
                ),
            };
            Refused {
                entity: id.to_string(),
                reason: reason.to_owned(),
                message,
            }
        };
        missing.map(refused).collect()
    }

    /// Remembers on disk which versions the router uses, and drops those that neither it nor the
    /// folder needs.
    fn remember(&self) {
        let mut kept = BTreeSet::new();
        for (profile, version) in self.record.versions() {
            let is_using = |entity: &Entity| entity.ssl_profile() == Some(profile.as_str());
            if self.live.iter().any(|(_, entity)| is_using(entity))
                && let Err(error) = self.store.set_current(&profile, &version)
            {
                warn!(profile, %error, "Could not remember the version in use");
            }
            kept.insert((profile, version));
        }
        kept.extend(self.desired.versions.clone());
        for profile in self.desired.profile_names() {
            kept.extend(
                self.store
                    .current(profile)
                    .map(|version| (profile.to_owned(), version)),
            );
        }
        for (_, entity) in self.live.iter() {
            if let Entity::SslProfile(profile) = entity {
                kept.extend(
                    self.store
                        .version_of(profile)
                        .map(|version| (profile.name.clone(), version)),
                );
            }
        }
        self.store.keep(&kept);
    }
}

/// Whether a change takes a profile away.
fn ends_profile(change: &Change) -> bool {
    matches!(change, Change::Delete(id) if id.entity_type == EntityType::SslProfile)
}

/// The form in which a change is refused.
fn change_form(change: &Change) -> String {
    match change {
        Change::Create(entity) => form(entity),
        Change::Update(profile) => form(&Entity::SslProfile(profile.clone())),
        Change::Delete(_) => REMOVAL.to_owned(),
    }
}

/// The listeners that are ours, each with the port that it has opened: one that did not is not left there.
fn open_listeners(live: &Live) -> BTreeMap<String, u16> {
    let ours = live.iter().filter(|(id, _)| is_managed(id));
    ours.filter_map(|(_, entity)| match entity {
        Entity::Listener(listener) => Some((listener.name.clone(), listener.port)),
        _ => None,
    })
    .collect()
}
