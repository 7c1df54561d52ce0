//! Which controllers run, and what wakes each?

use std::convert::Infallible;
use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt;
use kube::core::PartialObjectMeta;
use kube::runtime::applier;
use kube::runtime::controller::{Action, Config};
use kube::runtime::reflector::Store;
use spanwire_api::{
    AccessGrant, AccessToken, Certificate, Link, RouterAccess, SecuredAccess, Site,
};
use spanwire_plan::plan::ObjectKind;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::driver::{Held, Shell};
use crate::stores::{Queue, Queues, Watches};

/// The kinds that are reconciled.
pub const KINDS: [ObjectKind; 8] = [
    ObjectKind::Site,
    ObjectKind::Link,
    ObjectKind::RouterAccess,
    ObjectKind::SecuredAccess,
    ObjectKind::Certificate,
    ObjectKind::AccessGrant,
    ObjectKind::AccessToken,
    ObjectKind::Deployment,
];

/// Starts every watch, and a controller for each kind that is reconciled. `leads` tells when this replica begins to act
/// and when it stops.
pub fn start(
    shell: &Arc<Shell>,
    mut leads: watch::Receiver<bool>,
    watches: &mut Watches,
    mut queues: Queues,
    tasks: &mut JoinSet<()>,
) {
    let mut queue = |kind: ObjectKind| queues.remove(&kind);
    control::<Site>(shell, watches.reconciled(), queue(ObjectKind::Site), tasks);
    control::<Link>(shell, watches.reconciled(), queue(ObjectKind::Link), tasks);
    control::<RouterAccess>(
        shell,
        watches.reconciled(),
        queue(ObjectKind::RouterAccess),
        tasks,
    );
    control::<SecuredAccess>(
        shell,
        watches.reconciled(),
        queue(ObjectKind::SecuredAccess),
        tasks,
    );
    control::<Certificate>(
        shell,
        watches.reconciled(),
        queue(ObjectKind::Certificate),
        tasks,
    );
    control::<AccessGrant>(
        shell,
        watches.reconciled(),
        queue(ObjectKind::AccessGrant),
        tasks,
    );
    control::<AccessToken>(
        shell,
        watches.reconciled(),
        queue(ObjectKind::AccessToken),
        tasks,
    );
    control::<Deployment>(
        shell,
        watches.deployments(),
        queue(ObjectKind::Deployment),
        tasks,
    );
    watches.children();
    // No pass before every store has been filled once.
    let filled = watches.filled();
    tasks.spawn({
        let shell = shell.clone();
        async move {
            filled.complete().await;
            while leads.wait_for(|leads| *leads).await.is_ok() {
                tracing::info!("Began to reconcile");
                shell.stores.ring_all();
                if leads.wait_for(|leads| !*leads).await.is_err() {
                    return;
                }
                tracing::info!("Stopped reconciling: another replica leads");
            }
        }
    });
}

fn control<K: Held>(
    shell: &Arc<Shell>,
    store: Store<PartialObjectMeta<K>>,
    queue: Option<Queue>,
    tasks: &mut JoinSet<()>,
) {
    let Some(queue) = queue else { return };
    let shell = shell.clone();
    tasks.spawn(async move {
        let pass = |stub: Arc<PartialObjectMeta<K>>, shell: Arc<Shell>| {
            Box::pin(async move {
                let namespace = stub.namespace().unwrap_or_default();
                Ok::<_, Infallible>(shell.reconcile::<K>(&namespace, &stub.name_any()).await)
            })
        };
        let never = |_, _: &Infallible, _| Action::await_change();
        let requests = queue.requests::<K>().map(Ok::<_, Infallible>);
        applier(pass, never, shell, store, requests, Config::default())
            // A name that is gone before its turn is not an error, and a pass has told its own.
            .for_each(async |_| {})
            .await;
    });
}
