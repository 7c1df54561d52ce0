//! Site → routers: what do they run on, what are they told, and in which order?
//!
//! Credentials before configuration: the stored Secret grows before a stored configuration names what is new, and
//! shrinks after none names what is old. So in every stored revision each profile that the configuration names is in
//! the Secret, complete (`design.md` §3).

mod access;
pub(crate) mod claims;
mod config;
pub(crate) mod credentials;
mod deployment;
mod logging;
pub(crate) mod nudge;
pub(crate) mod rbac;
pub(crate) mod shape;
mod status;

use std::collections::BTreeMap;

use spanwire_api::Site;
use spanwire_api::condition::CONFIGURED;
use spanwire_api::site::reason;
use spanwire_router::config::{BOOTSTRAP_FILE, CONFIG_FILE};
use spanwire_router::credentials::{digest, revision};

use crate::kinds::{Changed, all};
use crate::plan::{Act, Child, Content, Env, ObjectKind, Plan, Ref, Verdict};
use crate::settle::{Settling, fence, settle};
use crate::world::World;
use crate::{labels, names};
use claims::Claims;
use credentials::{BUDGET, Credentials, Unclaimed};
use shape::Shape;

pub(crate) use config::connector;
pub(crate) use shape::{default_issuer, groups, is_edge};

pub(crate) fn plan(site: &Site, world: &World, env: &Env<'_>) -> Plan {
    if site.metadata.deletion_timestamp.is_some() {
        return Plan::nothing();
    }
    if let Some(active) = world
        .site()
        .filter(|active| active.metadata.uid != site.metadata.uid)
    {
        let active = active.metadata.name.as_deref().unwrap_or_default();
        let message = format!("An active site already exists in the namespace ({active})");
        let verdict = Verdict::error(CONFIGURED, reason::ANOTHER_SITE_ACTIVE, message);
        return Plan::only(status::only(verdict));
    }
    let shape = match Shape::check(site, env) {
        Ok(shape) => shape,
        // What is there stays as it is.
        Err(verdict) => return Plan::only(status::status(site, vec![verdict], &[], world, env)),
    };
    let mut making = Making {
        plan: Plan::nothing(),
        problems: status::problems(world, env),
    };
    making.border(&shape, world);
    making.routers(&shape, world, env);
    let Making { mut plan, problems } = making;
    plan.status = Some(status::status(site, problems, &shape.remarks, world, env));
    plan
}

pub(crate) fn wakes(changed: &Changed<'_>, world: &World) -> Vec<String> {
    use ObjectKind::{
        Certificate, ConfigMap, Deployment, Link, Pod, ReplicaSet, Role, RoleBinding, RouterAccess,
        Secret, Service, ServiceAccount,
    };
    let read = [
        ObjectKind::Site,
        Link,
        RouterAccess,
        Certificate,
        Secret,
        ConfigMap,
        Service,
        ServiceAccount,
        Role,
        RoleBinding,
        Deployment,
        ReplicaSet,
        Pod,
    ];
    if changed.is_of(&read) {
        all(&world.sites)
    } else {
        Vec::new()
    }
}

pub(crate) fn references(_site: &Site) -> Vec<(ObjectKind, String)> {
    let secrets = [names::CREDENTIALS, names::LOCAL_SERVER].map(|name| (ObjectKind::Secret, name));
    let config_maps = [
        names::ROUTER,
        names::ROUTER_2,
        names::REPORT,
        labels::CONTROL_CONFIG_MAP,
    ]
    .map(|name| (ObjectKind::ConfigMap, name));
    secrets
        .into_iter()
        .chain(config_maps)
        .map(|(kind, name)| (kind, name.to_owned()))
        .collect()
}

/// A plan in the making, and what stands in its way.
struct Making {
    plan: Plan,
    problems: Vec<Verdict>,
}

impl Making {
    /// What other kinds make credentials and addresses of.
    fn border(&mut self, shape: &Shape<'_>, world: &World) {
        let children = access::certificates(shape)
            .into_iter()
            .chain(access::router_access(shape));
        self.stage(false, settle(children, world));
        let closing = access::closing(shape, world);
        self.plan
            .push(CONFIGURED, false, closing.into_iter().collect());
    }

    /// Credentials, configuration, account, pods; each only when the one before is sure to be there.
    fn routers(&mut self, shape: &Shape<'_>, world: &World, env: &Env<'_>) {
        let claims = Claims::of(world, shape.edge, shape.ha);
        for clash in &claims.clashes {
            self.problem(reason::NAME_TAKEN, clash.clone());
        }
        let told = Told::of(&claims, shape, world, env);
        if !told.credentials.left_out.is_empty() {
            self.problem(reason::TOO_LARGE, format!(
                "the credentials of all links and accesses together exceed {BUDGET} bytes, and these are left out: {}",
                told.credentials.left_out.join(", ")
            ));
        }
        if let Some(group) = told
            .config
            .iter()
            .find(|child| size(child) > BUDGET)
            .map(Child::name)
        {
            let message = format!(
                "the configuration of router {group} exceeds {BUDGET} bytes; the last one stays in force"
            );
            self.problem(reason::TOO_LARGE, message);
            return;
        }
        self.plan.push(CONFIGURED, true, told.fences.clone());
        if !self.stage(true, settle([told.credentials.child(shape)], world))
            || !self.stage(true, settle(told.config.clone(), world))
        {
            return;
        }
        if !self.stage(true, settle(rbac::children(shape), world)) {
            return;
        }
        self.stage(false, settle([access::local_service(shape)], world));
        let deployments = told.config.iter().map(|config| {
            let bootstrap = text(config, BOOTSTRAP_FILE);
            deployment::deployment(config.name(), &digest(bootstrap.as_bytes()), shape, env)
        });
        self.stage(false, settle(deployments, world));
        for act in second_router(shape, world) {
            self.plan.push(CONFIGURED, true, vec![act]);
        }
        let (acts, again) =
            nudge::nudges(world, |group| told.revisions.get(group).cloned(), env.now);
        self.plan.push(CONFIGURED, false, acts);
        if let Some(again) = again {
            self.plan.look_again(again);
        }
    }

    /// Adds a stage; false where a stranger's object is in the way.
    fn stage(&mut self, gate: bool, settling: Settling) -> bool {
        let is_free = settling.taken.is_empty();
        for taken in settling.taken {
            self.problem(reason::NAME_TAKEN, taken);
        }
        self.plan.push(CONFIGURED, gate, settling.acts);
        is_free
    }

    fn problem(&mut self, reason: &'static str, message: String) {
        self.problems
            .push(Verdict::error(CONFIGURED, reason, message));
    }
}

/// What the routers are to be told.
struct Told {
    credentials: Credentials,
    /// One ConfigMap a group.
    config: Vec<Child>,
    /// Writes that must succeed before the credentials may shrink.
    fences: Vec<Act>,
    /// By group: what its adaptor reports once it has seen all of it.
    revisions: BTreeMap<String, String>,
}

impl Told {
    /// A profile that nobody claims any more is forgotten only where every stored configuration is the wanted one; and as
    /// what was seen of it may be old, only behind a write of it that would then be refused.
    fn of(claims: &Claims<'_>, shape: &Shape<'_>, world: &World, env: &Env<'_>) -> Self {
        let wanted = |unclaimed| Credentials::wanted(claims, shape, world, env.now, unclaimed);
        let grown = wanted(Unclaimed::Keep);
        let config = config_maps(shape, claims, &grown, env);
        let shrunk = wanted(Unclaimed::Forget);
        let is_settled = is_settled(&config, world) && second_router(shape, world).is_empty();
        if grown.profiles == shrunk.profiles || !is_settled {
            return Self::with(grown, config, Vec::new());
        }
        let fences = config
            .into_iter()
            .filter_map(|child| fence(child, world))
            .collect();
        let config = config_maps(shape, claims, &shrunk, env);
        Self::with(shrunk, config, fences)
    }

    fn with(credentials: Credentials, config: Vec<Child>, fences: Vec<Act>) -> Self {
        let profiles = credentials.profiles.to_json();
        let revisions = config.iter().map(|child| {
            let document = text(child, CONFIG_FILE);
            (
                child.name().to_owned(),
                revision(profiles.as_bytes(), document.as_bytes()),
            )
        });
        Self {
            revisions: revisions.collect(),
            credentials,
            config,
            fences,
        }
    }
}

fn config_maps(
    shape: &Shape<'_>,
    claims: &Claims<'_>,
    credentials: &Credentials,
    env: &Env<'_>,
) -> Vec<Child> {
    let bootstrap = config::bootstrap(shape, env);
    let config_map = |group: &&str| {
        let document = config::document(group, shape, claims, credentials, env);
        config::config_map(group, shape, &bootstrap, &document)
    };
    shape.groups().iter().map(config_map).collect()
}

fn is_settled(children: &[Child], world: &World) -> bool {
    let settling = settle(children.to_vec(), world);
    let is_going = |child: &Child| {
        world
            .live(child.kind, child.name())
            .is_some_and(|live| live.metadata.deletion_timestamp.is_some())
    };
    settling == Settling::default() && !children.iter().any(is_going)
}

/// The removal of a second router that is not wanted: first what runs, then what it ran on.
fn second_router(shape: &Shape<'_>, world: &World) -> Vec<Act> {
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

/// What is stored of a child's data, in bytes.
fn size(child: &Child) -> usize {
    let length = |content: &Content| match content {
        Content::Text(text) => text.len(),
        Content::Copy(_) => 0,
    };
    child
        .data
        .iter()
        .map(|(key, content)| key.len() + length(content))
        .sum()
}

fn text<'c>(child: &'c Child, key: &str) -> &'c str {
    match child.data.get(key) {
        Some(Content::Text(text)) => text,
        _ => "",
    }
}
