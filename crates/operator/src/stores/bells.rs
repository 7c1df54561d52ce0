//! Who hears the news?

use std::collections::HashMap;

use futures::stream::{self, BoxStream, StreamExt};
use k8s_openapi::api::apps::v1::Deployment;
use kube::core::PartialObjectMeta;
use kube::runtime::controller::ReconcileRequest;
use kube::runtime::reflector::ObjectRef;
use spanwire_api::{
    AccessGrant, AccessToken, Certificate, Link, RouterAccess, SecuredAccess, Site,
};
use spanwire_plan::kinds::Changed;
use spanwire_plan::plan::ObjectKind;
use spanwire_plan::{Kind, World};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// A namespace and a name.
type Name = (String, String);

/// One doorbell a reconciled kind. It carries names only, and the controllers' scheduler merges those that wait, so
/// its channels stay as small as the set of objects.
pub struct Bells {
    by_kind: HashMap<ObjectKind, UnboundedSender<Name>>,
}

/// The other ends of the doorbells.
pub type Queues = HashMap<ObjectKind, Queue>;

/// The other end of a doorbell.
pub struct Queue(UnboundedReceiver<Name>);

impl Bells {
    /// A doorbell for each of these kinds, and its other ends.
    pub fn new(kinds: &[ObjectKind]) -> (Self, Queues) {
        let mut by_kind = HashMap::new();
        let mut queues = HashMap::new();
        for kind in kinds {
            let (bell, queue) = unbounded_channel();
            by_kind.insert(*kind, bell);
            queues.insert(*kind, Queue(queue));
        }
        (Self { by_kind }, queues)
    }

    /// Wakes every object whose plan may be another one after this news.
    pub fn ring(&self, changed: &Changed<'_>, world: &World) {
        self.ring_kind::<Site>(changed, world);
        self.ring_kind::<Link>(changed, world);
        self.ring_kind::<RouterAccess>(changed, world);
        self.ring_kind::<SecuredAccess>(changed, world);
        self.ring_kind::<Certificate>(changed, world);
        self.ring_kind::<AccessGrant>(changed, world);
        self.ring_kind::<AccessToken>(changed, world);
        self.ring_kind::<Deployment>(changed, world);
    }

    /// Wakes every object of a World.
    pub fn ring_all(&self, world: &World) {
        fn names<K>(objects: &spanwire_plan::world::Objects<K>) -> impl Iterator<Item = &String> {
            objects.0.keys()
        }
        let namespace = &world.namespace;
        names(&world.sites).for_each(|name| self.wake(ObjectKind::Site, namespace, name));
        names(&world.links).for_each(|name| self.wake(ObjectKind::Link, namespace, name));
        names(&world.router_accesses)
            .for_each(|name| self.wake(ObjectKind::RouterAccess, namespace, name));
        names(&world.secured_accesses)
            .for_each(|name| self.wake(ObjectKind::SecuredAccess, namespace, name));
        names(&world.certificates)
            .for_each(|name| self.wake(ObjectKind::Certificate, namespace, name));
        names(&world.access_grants)
            .for_each(|name| self.wake(ObjectKind::AccessGrant, namespace, name));
        names(&world.access_tokens)
            .for_each(|name| self.wake(ObjectKind::AccessToken, namespace, name));
        names(&world.deployments)
            .for_each(|name| self.wake(ObjectKind::Deployment, namespace, name));
    }

    /// Wakes one object.
    pub fn wake(&self, kind: ObjectKind, namespace: &str, name: &str) {
        if let Some(bell) = self.by_kind.get(&kind) {
            // Nobody at the other end means that the operator is stopping.
            let _ = bell.send((namespace.to_owned(), name.to_owned()));
        }
    }

    fn ring_kind<K: Kind>(&self, changed: &Changed<'_>, world: &World) {
        if let Changed::Object(kind, name) = changed
            && *kind == K::KIND
        {
            self.wake(K::KIND, &world.namespace, name);
        }
        for name in K::wakes(changed, world) {
            self.wake(K::KIND, &world.namespace, &name);
        }
    }
}

impl Queue {
    /// The names as a controller of kind `K` takes them.
    pub fn requests<K: Kind>(self) -> BoxStream<'static, ReconcileRequest<PartialObjectMeta<K>>> {
        stream::unfold(self.0, async |mut queue| {
            let (namespace, name) = queue.recv().await?;
            let request = ReconcileRequest::from(ObjectRef::new(&name).within(&namespace));
            Some((request, queue))
        })
        .boxed()
    }
}
