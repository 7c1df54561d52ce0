//! Which kinds are reconciled, and what does the shell need to know of each?

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::{NamespaceResourceScope, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use spanwire_api::{
    AccessGrant, AccessToken, Certificate, Link, RouterAccess, SecuredAccess, Site, condition,
};

use crate::env::Env;
use crate::labels;
use crate::plan::{ObjectKind, Plan, Ref, Status, Verdict};
use crate::seen::{Odd, Seen};
use crate::world::{Named, Objects, World};
use crate::{
    access_grant, access_token, certificate, controller, link, router_access, secured_access, site,
};

/// A kind that is reconciled: three questions, one answer a module.
pub trait Kind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
    /// Which kind this is.
    const KIND: ObjectKind;
    /// The condition in which an object that does not fit is told so; absent for kinds whose status is not ours.
    const CONDITION: Option<&'static str>;

    /// What is needed for this object, and what is true of it. Total: a bad spec is a verdict.
    fn plan(&self, world: &World, env: &Env<'_>) -> Plan;

    /// The names of the objects of this kind, in this World, whose plan may be another one now.
    fn wakes(changed: &Changed<'_>, world: &World) -> Vec<String>;

    /// The Secrets and ConfigMaps whose content a plan for this object depends on.
    fn references(&self) -> Vec<(ObjectKind, String)> {
        Vec::new()
    }
}

/// What the news is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed<'a> {
    /// An object of this World has come, gone or changed.
    Object(ObjectKind, &'a str),
    /// What the operator's namespace offers has changed.
    GrantServer,
    /// A redemption has ended.
    Attempt,
}

impl Changed<'_> {
    /// Whether the news is about an object of one of these kinds.
    pub fn is_of(&self, kinds: &[ObjectKind]) -> bool {
        matches!(self, Self::Object(kind, _) if kinds.contains(kind))
    }
}

/// The plan for an object that does not fit its type.
pub fn odd<K: Kind>(odd: &Odd) -> Plan {
    let Some(condition) = K::CONDITION else {
        return Plan::nothing();
    };
    let message = format!(
        "the {} does not fit its schema: {}",
        K::kind(&()),
        odd.error
    );
    Plan::only(Status {
        verdicts: vec![Verdict::error(
            condition,
            condition::reason::INVALID_OBJECT,
            message,
        )],
        ..Status::default()
    })
}

/// The plan for every object of this World that is reconciled.
pub fn plans(world: &World, env: &Env<'_>) -> BTreeMap<Ref, Plan> {
    let mut plans = BTreeMap::new();
    plans.extend(of_kind(&world.sites, world, env));
    plans.extend(of_kind(&world.links, world, env));
    plans.extend(of_kind(&world.router_accesses, world, env));
    plans.extend(of_kind(&world.secured_accesses, world, env));
    plans.extend(of_kind(&world.certificates, world, env));
    plans.extend(of_kind(&world.access_grants, world, env));
    plans.extend(of_kind(&world.access_tokens, world, env));
    plans.extend(world.deployments.iter().map(|object| {
        (
            reference::<Deployment>(object.metadata(), world),
            object.plan(world, env),
        )
    }));
    plans
}

fn of_kind<K: Kind>(objects: &Objects<Seen<K>>, world: &World, env: &Env<'_>) -> Vec<(Ref, Plan)> {
    let planned = |seen: &Seen<K>| match seen {
        Seen::Fits(object) => object.plan(world, env),
        Seen::Odd(odd) => self::odd::<K>(odd),
    };
    objects
        .iter()
        .map(|seen| (reference::<K>(seen.metadata(), world), planned(seen)))
        .collect()
}

fn reference<K: Kind>(metadata: &ObjectMeta, world: &World) -> Ref {
    Ref {
        kind: K::KIND,
        namespace: world.namespace.clone(),
        name: metadata.name.clone().unwrap_or_default(),
    }
}

/// Every object of this World that is reconciled.
pub fn everything(world: &World) -> BTreeSet<Ref> {
    fn of<'w, K: Kind>(
        metadata: impl Iterator<Item = &'w ObjectMeta>,
        world: &World,
    ) -> impl Iterator<Item = Ref> {
        metadata.map(|metadata| reference::<K>(metadata, world))
    }
    of::<Site>(world.sites.iter().map(Named::metadata), world)
        .chain(of::<Link>(world.links.iter().map(Named::metadata), world))
        .chain(of::<RouterAccess>(
            world.router_accesses.iter().map(Named::metadata),
            world,
        ))
        .chain(of::<SecuredAccess>(
            world.secured_accesses.iter().map(Named::metadata),
            world,
        ))
        .chain(of::<Certificate>(
            world.certificates.iter().map(Named::metadata),
            world,
        ))
        .chain(of::<AccessGrant>(
            world.access_grants.iter().map(Named::metadata),
            world,
        ))
        .chain(of::<AccessToken>(
            world.access_tokens.iter().map(Named::metadata),
            world,
        ))
        .chain(of::<Deployment>(
            world.deployments.iter().map(Named::metadata),
            world,
        ))
        .collect()
}

/// Every object of this World whose plan may be another one now.
pub fn wakes(changed: &Changed<'_>, world: &World) -> BTreeSet<Ref> {
    fn woken<K: Kind>(changed: &Changed<'_>, world: &World) -> impl Iterator<Item = Ref> {
        let namespace = world.namespace.clone();
        K::wakes(changed, world).into_iter().map(move |name| Ref {
            kind: K::KIND,
            namespace: namespace.clone(),
            name,
        })
    }
    // Whether we act here at all has changed.
    if *changed == Changed::Object(ObjectKind::ConfigMap, labels::CONTROL_CONFIG_MAP) {
        return everything(world);
    }
    woken::<Site>(changed, world)
        .chain(woken::<Link>(changed, world))
        .chain(woken::<RouterAccess>(changed, world))
        .chain(woken::<SecuredAccess>(changed, world))
        .chain(woken::<Certificate>(changed, world))
        .chain(woken::<AccessGrant>(changed, world))
        .chain(woken::<AccessToken>(changed, world))
        .chain(woken::<Deployment>(changed, world))
        .collect()
}

/// The Secrets and ConfigMaps whose content the plans of this World depend on.
pub fn references(world: &World) -> BTreeSet<(ObjectKind, String)> {
    fn named<K: Kind>(objects: &Objects<Seen<K>>) -> impl Iterator<Item = (ObjectKind, String)> {
        objects.fitting().flat_map(Kind::references)
    }
    named(&world.sites)
        .chain(named(&world.links))
        .chain(named(&world.router_accesses))
        .chain(named(&world.secured_accesses))
        .chain(named(&world.certificates))
        .chain(named(&world.access_grants))
        .chain(named(&world.access_tokens))
        .chain(world.deployments.iter().flat_map(Kind::references))
        .collect()
}

/// The names of all objects of a kind.
pub(crate) fn all<K: Named>(objects: &Objects<K>) -> Vec<String> {
    objects
        .iter()
        .filter_map(|object| object.metadata().name.clone())
        .collect()
}

impl Kind for Site {
    const KIND: ObjectKind = ObjectKind::Site;
    const CONDITION: Option<&'static str> = Some(condition::CONFIGURED);

    fn plan(&self, world: &World, env: &Env<'_>) -> Plan {
        site::plan(self, world, env)
    }

    fn wakes(changed: &Changed<'_>, world: &World) -> Vec<String> {
        site::wakes(changed, world)
    }

    fn references(&self) -> Vec<(ObjectKind, String)> {
        site::references(self)
    }
}

impl Kind for Link {
    const KIND: ObjectKind = ObjectKind::Link;
    const CONDITION: Option<&'static str> = Some(condition::CONFIGURED);

    fn plan(&self, world: &World, env: &Env<'_>) -> Plan {
        link::plan(self, world, env)
    }

    fn wakes(changed: &Changed<'_>, world: &World) -> Vec<String> {
        link::wakes(changed, world)
    }

    fn references(&self) -> Vec<(ObjectKind, String)> {
        link::references(self)
    }
}

impl Kind for RouterAccess {
    const KIND: ObjectKind = ObjectKind::RouterAccess;
    const CONDITION: Option<&'static str> = Some(condition::CONFIGURED);

    fn plan(&self, world: &World, env: &Env<'_>) -> Plan {
        router_access::plan(self, world, env)
    }

    fn wakes(changed: &Changed<'_>, world: &World) -> Vec<String> {
        router_access::wakes(changed, world)
    }

    fn references(&self) -> Vec<(ObjectKind, String)> {
        router_access::references(self)
    }
}

impl Kind for SecuredAccess {
    const KIND: ObjectKind = ObjectKind::SecuredAccess;
    const CONDITION: Option<&'static str> = Some(condition::CONFIGURED);

    fn plan(&self, world: &World, env: &Env<'_>) -> Plan {
        secured_access::plan(self, world, env)
    }

    fn wakes(changed: &Changed<'_>, world: &World) -> Vec<String> {
        secured_access::wakes(changed, world)
    }

    fn references(&self) -> Vec<(ObjectKind, String)> {
        secured_access::references(self)
    }
}

impl Kind for Certificate {
    const KIND: ObjectKind = ObjectKind::Certificate;
    const CONDITION: Option<&'static str> = Some(condition::READY);

    fn plan(&self, world: &World, env: &Env<'_>) -> Plan {
        certificate::plan(self, world, env)
    }

    fn wakes(changed: &Changed<'_>, world: &World) -> Vec<String> {
        certificate::wakes(changed, world)
    }

    fn references(&self) -> Vec<(ObjectKind, String)> {
        certificate::references(self)
    }
}

impl Kind for AccessGrant {
    const KIND: ObjectKind = ObjectKind::AccessGrant;
    const CONDITION: Option<&'static str> = Some(condition::PROCESSED);

    fn plan(&self, world: &World, env: &Env<'_>) -> Plan {
        access_grant::plan(self, world, env)
    }

    fn wakes(changed: &Changed<'_>, world: &World) -> Vec<String> {
        access_grant::wakes(changed, world)
    }

    fn references(&self) -> Vec<(ObjectKind, String)> {
        access_grant::references(self)
    }
}

impl Kind for AccessToken {
    const KIND: ObjectKind = ObjectKind::AccessToken;
    const CONDITION: Option<&'static str> = Some(condition::REDEEMED);

    fn plan(&self, world: &World, env: &Env<'_>) -> Plan {
        access_token::plan(self, world, env)
    }

    fn wakes(changed: &Changed<'_>, world: &World) -> Vec<String> {
        access_token::wakes(changed, world)
    }

    fn references(&self) -> Vec<(ObjectKind, String)> {
        access_token::references(self)
    }
}

/// The operator's own Deployment: the object that the grant server's access hangs on.
impl Kind for Deployment {
    const KIND: ObjectKind = ObjectKind::Deployment;
    const CONDITION: Option<&'static str> = None;

    fn plan(&self, world: &World, env: &Env<'_>) -> Plan {
        controller::plan(self, world, env)
    }

    fn wakes(changed: &Changed<'_>, world: &World) -> Vec<String> {
        controller::wakes(changed, world)
    }

    fn references(&self) -> Vec<(ObjectKind, String)> {
        controller::references(self)
    }
}
