//! What does the operator know, by namespace?
//!
//! The only copy of the cluster that the operator keeps: one [`World`] a namespace, which the watches fill and every
//! pass reads. *Store before doorbell*: news changes the World first and then wakes whoever's plan may be another
//! one now, deletions included. Secrets and ConfigMaps are watched as metadata; a body is read when an object names
//! it, and only its facts stay.

mod bells;
mod bodies;
mod codes;
mod space;
mod watch;

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use spanwire_api::{
    AccessGrant, AccessToken, Certificate, Link, RouterAccess, SecuredAccess, Site,
};
use spanwire_plan::kinds::Changed;
use spanwire_plan::offer::grant_server_address;
use spanwire_plan::plan::ObjectKind;
use spanwire_plan::world::{Attempt, GrantServer, Named, Objects};
use spanwire_plan::{Kind, Seen, World, names};

pub use bells::{Bells, Queue, Queues};
pub use bodies::{Facts, GrantCredentials, Reader};
pub use codes::Codes;
pub use watch::{Filled, Scope, Watches};

use bodies::Bodies;
use space::{Errand, Space};

/// Every namespace's World.
pub struct Stores {
    spaces: RwLock<Spaces>,
    /// The operator's own namespace, which offers the grant server to all others.
    home: String,
    bells: Bells,
    /// What is known of codes: their digests.
    pub codes: Codes,
    bodies: Bodies,
}

#[derive(Default)]
struct Spaces {
    by_name: HashMap<String, Space>,
    grant_server: GrantServer,
}

/// A kind and a name, in a namespace.
type Kept = (ObjectKind, String);

impl Spaces {
    fn space(&mut self, namespace: &str) -> &mut Space {
        let grant_server = &self.grant_server;
        self.by_name
            .entry(namespace.to_owned())
            .or_insert_with(|| Space::new(namespace, grant_server.clone()))
    }
}

/// A kind that the World holds whole.
pub trait Stored: Named + Clone + Send + Sync + 'static {
    /// Which kind it is.
    const KIND: ObjectKind;

    /// Where the World holds it.
    fn of(world: &World) -> &Objects<Self>;

    /// The same, to change it.
    fn objects(world: &mut World) -> &mut Objects<Self>;

    /// The Secrets and ConfigMaps whose content it depends on.
    fn references(&self) -> Vec<Kept>;
}

macro_rules! stored {
    ($($type:ty, $kind:ident, $field:ident, $references:expr;)*) => {$(
        impl Stored for $type {
            const KIND: ObjectKind = ObjectKind::$kind;

            fn of(world: &World) -> &Objects<Self> {
                &world.$field
            }

            fn objects(world: &mut World) -> &mut Objects<Self> {
                &mut world.$field
            }

            fn references(&self) -> Vec<Kept> {
                let references: fn(&Self) -> Vec<Kept> = $references;
                references(self)
            }
        }
    )*};
}

stored! {
    Seen<Site>, Site, sites, of_fitting;
    Seen<Link>, Link, links, of_fitting;
    Seen<RouterAccess>, RouterAccess, router_accesses, of_fitting;
    Seen<SecuredAccess>, SecuredAccess, secured_accesses, of_fitting;
    Seen<Certificate>, Certificate, certificates, of_fitting;
    Seen<AccessGrant>, AccessGrant, access_grants, of_fitting;
    Seen<AccessToken>, AccessToken, access_tokens, of_fitting;
    k8s_openapi::api::core::v1::Service, Service, services, none;
    k8s_openapi::api::core::v1::ServiceAccount, ServiceAccount, service_accounts, none;
    k8s_openapi::api::rbac::v1::Role, Role, roles, none;
    k8s_openapi::api::rbac::v1::RoleBinding, RoleBinding, role_bindings, none;
    k8s_openapi::api::apps::v1::Deployment, Deployment, deployments, Kind::references;
    kube::core::PartialObjectMeta<k8s_openapi::api::apps::v1::ReplicaSet>, ReplicaSet, replica_sets, none;
    k8s_openapi::api::core::v1::Pod, Pod, pods, none;
}

fn of_fitting<K: Kind>(seen: &Seen<K>) -> Vec<Kept> {
    seen.fits().map(Kind::references).unwrap_or_default()
}

fn none<K>(_: &K) -> Vec<Kept> {
    Vec::new()
}

impl Stores {
    /// Empty stores for an operator that lives in the namespace `home`.
    pub fn new(home: &str, bells: Bells) -> Self {
        Self {
            spaces: RwLock::default(),
            home: home.to_owned(),
            bells,
            codes: Codes::default(),
            bodies: Bodies::default(),
        }
    }

    /// What is known of a namespace now.
    pub fn world(&self, namespace: &str) -> Arc<World> {
        let spaces = self.read();
        spaces.by_name.get(namespace).map_or_else(
            || {
                Arc::new(World {
                    namespace: namespace.to_owned(),
                    ..World::default()
                })
            },
            |space| space.world.clone(),
        )
    }

    /// The World for a pass over one object; none while a body that the namespace depends on is being read: the
    /// doorbell rings for this object when it is in.
    pub fn world_for(&self, kind: ObjectKind, namespace: &str, name: &str) -> Option<Arc<World>> {
        let mut spaces = self.write();
        let space = spaces.by_name.get_mut(namespace)?;
        space
            .admits((kind, name.to_owned()))
            .then(|| space.world.clone())
    }

    /// Names of the namespaces of which something is known.
    pub fn namespaces(&self) -> Vec<String> {
        self.read().by_name.keys().cloned().collect()
    }

    /// Takes in an object, and wakes who depends on it. An object that is known at this resourceVersion is no news.
    pub fn keep<K: Stored>(&self, object: K) {
        let metadata = object.metadata();
        let namespace = metadata.namespace.clone().unwrap_or_default();
        let name = metadata.name.clone().unwrap_or_default();
        let changed = Changed::Object(K::KIND, &name);
        let world = self.change(&namespace, &changed, |space| space.keep(object));
        self.follow_grant_server(&changed, &world);
    }

    /// Lets go of an object, and wakes who depended on it.
    pub fn forget<K: Stored>(&self, namespace: &str, name: &str) {
        let changed = Changed::Object(K::KIND, name);
        let world = self.change(namespace, &changed, |space| space.forget::<K>(name));
        self.follow_grant_server(&changed, &world);
        self.leave(namespace);
    }

    /// Lets go of a namespace of which nothing is left.
    fn leave(&self, namespace: &str) {
        let mut spaces = self.write();
        if spaces.by_name.get(namespace).is_some_and(Space::is_bare) {
            spaces.by_name.remove(namespace);
        }
    }

    /// The names of all known objects of a kind.
    fn known<K: Stored>(&self) -> Vec<(String, String)> {
        let spaces = self.read();
        let of_space = |(namespace, space): (&String, &Space)| -> Vec<(String, String)> {
            let names = K::of(&space.world).0.keys();
            names
                .map(|name| (namespace.clone(), name.clone()))
                .collect()
        };
        spaces.by_name.iter().flat_map(of_space).collect()
    }

    /// Remembers how a redemption went, and wakes the token.
    pub fn record(&self, token: String, attempt: Attempt) {
        let Some(namespace) = self.codes.namespace_of_token(&token) else {
            return;
        };
        self.change(&namespace, &Changed::Attempt, |space| {
            space.change(|world| {
                world.attempts.insert(token, attempt);
            })
        });
    }

    /// Wakes every object there is: after this replica has become the leader.
    pub fn ring_all(&self) {
        for namespace in self.namespaces() {
            self.bells.ring_all(&self.world(&namespace));
        }
    }

    /// Changes what is known of a namespace; then, and not before, sends for bodies and rings.
    fn change(
        &self,
        namespace: &str,
        changed: &Changed<'_>,
        change: impl FnOnce(&mut Space) -> Errand,
    ) -> Arc<World> {
        let (errand, world) = {
            let mut spaces = self.write();
            let space = spaces.space(namespace);
            (change(space), space.world.clone())
        };
        if let Some(uid) = &errand.gone {
            self.codes.forget(uid);
        }
        for (body, revision) in errand.reads {
            self.send_for(namespace, body, revision);
        }
        if errand.is_news {
            self.bells.ring(changed, &world);
        }
        for (kind, name) in errand.woken {
            self.bells.wake(kind, namespace, &name);
        }
        world
    }

    fn follow_grant_server(&self, changed: &Changed<'_>, world: &World) {
        let access = Changed::Object(ObjectKind::SecuredAccess, names::GRANT_SERVER);
        if world.namespace == self.home && *changed == access {
            self.offer_address(world);
        }
    }

    /// The published address of the grant server, for every namespace.
    fn offer_address(&self, home: &World) {
        let address = grant_server_address(home);
        self.offer(|server| server.address = address);
    }

    /// Changes what the operator's namespace offers, and wakes those who use it.
    fn offer(&self, change: impl FnOnce(&mut GrantServer)) {
        let worlds = {
            let mut spaces = self.write();
            let mut server = spaces.grant_server.clone();
            change(&mut server);
            if server == spaces.grant_server {
                return;
            }
            spaces.grant_server = server.clone();
            let change = |space: &mut Space| {
                Arc::make_mut(&mut space.world).grant_server = server.clone();
                space.world.clone()
            };
            spaces.by_name.values_mut().map(change).collect::<Vec<_>>()
        };
        for world in worlds {
            self.bells.ring(&Changed::GrantServer, &world);
        }
    }

    // A panic while a lock is held is that pass's error; the maps are changed by single inserts and stay whole.
    fn read(&self) -> RwLockReadGuard<'_, Spaces> {
        self.spaces.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Spaces> {
        self.spaces.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
