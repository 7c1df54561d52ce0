//! Who hears the news?

use std::collections::HashMap;

use futures::stream::{self, BoxStream, StreamExt};
use kube::core::PartialObjectMeta;
use kube::runtime::controller::ReconcileRequest;
use kube::runtime::reflector::ObjectRef;
use spanwire_plan::kinds::Changed;
use spanwire_plan::plan::ObjectKind;
use spanwire_plan::{Kind, World, kinds};
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

    /// Wakes the object that the news is about, and every other whose plan may be another one now.
    pub fn ring(&self, changed: &Changed<'_>, world: &World) {
        if let Changed::Object(kind, name) = changed {
            self.wake(*kind, &world.namespace, name);
        }
        for woken in kinds::wakes(changed, world) {
            self.wake(woken.kind, &woken.namespace, &woken.name);
        }
    }

    /// Wakes every object of a World.
    pub fn ring_all(&self, world: &World) {
        for woken in kinds::everything(world) {
            self.wake(woken.kind, &woken.namespace, &woken.name);
        }
    }

    /// Wakes one object.
    pub fn wake(&self, kind: ObjectKind, namespace: &str, name: &str) {
        if let Some(bell) = self.by_kind.get(&kind) {
            // Nobody at the other end means that the operator is stopping.
            let _ = bell.send((namespace.to_owned(), name.to_owned()));
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
