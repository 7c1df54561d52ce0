//! Site → routers: what do they run on, what are they told, and in which order?
//!
//! Credentials before configuration, configuration before pods; each stage only where the one before is sure to be
//! there (`design.md` §3).

mod access;
pub(crate) mod claims;
mod config;
pub(crate) mod credentials;
mod deployment;
mod logging;
pub(crate) mod nudge;
mod order;
pub(crate) mod rbac;
pub(crate) mod shape;
mod status;

use spanwire_api::Site;
use spanwire_api::condition::CONFIGURED;
use spanwire_api::site::reason;

use crate::env::Env;
use crate::kinds::{Changed, all};
use crate::plan::{ObjectKind, Plan, Verdict};
use crate::settle::{Settling, settle};
use crate::world::World;
use crate::{credential, labels, names};
use claims::Claims;
use credentials::BUDGET;
use order::Told;
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
    let is_read = changed.is_of(&[
        ObjectKind::Site,
        ObjectKind::Link,
        ObjectKind::RouterAccess,
        ObjectKind::SecuredAccess,
        ObjectKind::Certificate,
        ObjectKind::Secret,
        ObjectKind::ConfigMap,
        ObjectKind::Service,
        ObjectKind::ServiceAccount,
        ObjectKind::Role,
        ObjectKind::RoleBinding,
        ObjectKind::Deployment,
        ObjectKind::ReplicaSet,
        ObjectKind::Pod,
    ]);
    if is_read {
        all(&world.sites)
    } else {
        Vec::new()
    }
}

pub(crate) fn references(site: &Site) -> Vec<(ObjectKind, String)> {
    // Grants are signed by the default issuer, whoever else names it.
    let secrets = [
        names::CREDENTIALS,
        names::LOCAL_SERVER,
        default_issuer(site),
    ]
    .map(|name| (ObjectKind::Secret, name));
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
        for turn in claims
            .secrets
            .values()
            .filter_map(|name| credential::turn(world, name, env.now))
        {
            self.plan.look_again(turn);
        }
        let told = Told::of(&claims, shape, world, env);
        if !told.left_out.is_empty() {
            let message = format!(
                "the credentials of all links and accesses exceed {BUDGET} bytes together, and these are left out: {}",
                told.left_out.join(", ")
            );
            self.problem(reason::TOO_LARGE, message);
        }
        if let Some(config) = told.configs.iter().find(|config| config.size() > BUDGET) {
            let message = format!(
                "the configuration of router {} exceeds {BUDGET} bytes; the last one stays in force",
                config.child.name()
            );
            self.problem(reason::TOO_LARGE, message);
            return;
        }
        let configs = settle(
            told.configs.iter().map(|config| config.child.clone()),
            world,
        );
        self.plan.push(CONFIGURED, true, told.fences.clone());
        if !self.stage(true, told.credentials.clone()) || !self.stage(true, configs) {
            return;
        }
        if !self.stage(true, settle(rbac::children(shape, world), world)) {
            return;
        }
        self.stage(false, settle([access::local_service(shape)], world));
        let deployments = told.configs.iter().map(|config| {
            deployment::deployment(config.child.name(), &config.bootstrap(), shape, world, env)
        });
        self.stage(false, settle(deployments, world));
        for act in order::second_router(shape, world) {
            self.plan.push(CONFIGURED, true, vec![act]);
        }
        let (acts, again) = nudge::nudges(world, |group| told.revision(group), env.now);
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
