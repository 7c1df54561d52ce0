//! How does a cluster with the operator come up, step by step, before a person's eyes?

use std::path::PathBuf;

use anyhow::Result;
use spanwire_e2e::binaries::{self, Binaries};
use spanwire_e2e::cluster::{Cluster, Wanted};
use spanwire_e2e::images::Profile;
use spanwire_e2e::real_router::RealRouter;
use spanwire_e2e::tools::{self, Install};
use spanwire_e2e::{bed, images};

use crate::progress::Steps;

/// What was built, before anything is started.
#[derive(Debug)]
pub(crate) struct Built {
    pub(crate) binaries: Binaries,
    programs: PathBuf,
}

/// Installs what is missing, and builds the control plane and our programs.
pub(crate) fn build(steps: &Steps, no_install: bool, profile: Profile) -> Result<Built> {
    let install = if no_install {
        Install::Refused
    } else {
        Install::Allowed
    };
    steps.run("machine", |say| {
        tools::prepare(install, say).map(|()| ((), "all packages are there".to_owned()))
    })?;
    let binaries = steps.run("control plane", |say| {
        let binaries = binaries::control_plane(say)?;
        let source = if binaries.is_cached {
            "from cache"
        } else {
            "built"
        };
        let detail = format!("Kubernetes {} {source}", binaries.version);
        Ok((binaries, detail))
    })?;
    let programs = steps.run("programs", |say| {
        let router = if RealRouter::named()?.is_some() {
            "the real router found"
        } else {
            "stand-in router built"
        };
        Ok((
            images::build(profile, say)?,
            format!("operator and adaptor built, {router}"),
        ))
    })?;
    Ok(Built { binaries, programs })
}

/// Starts a cluster in `target/<name>` and installs the operator.
pub(crate) fn raise(steps: &Steps, built: &Built, name: &str) -> Result<Cluster> {
    let wanted = Wanted {
        name,
        has_node: true,
        has_definitions: true,
        emulated_version: None,
    };
    let cluster = steps.run("cluster", |say| {
        let cluster = Cluster::start(&built.binaries, wanted, say)?;
        let detail = format!("node ready, {}", cluster.address());
        Ok((cluster, detail))
    })?;
    let archives = steps.run("images", |say| {
        say("writing");
        let spanwire = images::spanwire(&built.programs, cluster.dir())?;
        let router = images::router(&built.programs, cluster.dir())?;
        let detail = format!(
            "spanwire {} · router {}",
            megabytes(spanwire.size),
            megabytes(router.size)
        );
        Ok(([spanwire, router], detail))
    })?;
    steps.run("operator", |say| {
        say("waiting for the Deployment");
        bed::furnish(&cluster, &archives)?;
        Ok(((), "Deployment ready".to_owned()))
    })?;
    Ok(cluster)
}

fn megabytes(bytes: u64) -> String {
    let tenths = bytes / 100_000;
    format!("{}.{} MB", tenths / 10, tenths % 10)
}
