//! Does a router end as wanted when its node sees one of Secret and ConfigMap later than the other?
//!
//! On a cluster of its own: no other test's node should be late.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use spanwire_e2e::bed::{self, Bed};
use spanwire_e2e::fault_proxy::{Asked, Fate};
use spanwire_e2e::scenario;

const DELAY: Duration = Duration::from_secs(5);

/// An object of a site that its node sees late.
struct View {
    prefix: &'static str,
    resource: &'static str,
    name: &'static str,
}

const VIEWS: [View; 2] = [
    View {
        prefix: "late-configuration",
        resource: "configmaps",
        name: "skupper-router",
    },
    View {
        prefix: "late-credentials",
        resource: "secrets",
        name: "skupper-router-credentials",
    },
];

#[test]
fn rewritten_again_and_again_and_seen_late_the_router_ends_as_wanted() -> Result<()> {
    let mut cluster = bed::own()?;
    let proxy = cluster.divert_kubelet(fate)?;
    let bed = Bed::of(&cluster);
    for view in &VIEWS {
        let rewritten = scenario::linked_on(&bed, view.prefix, |scenario| {
            let before = proxy.late_frames();
            let waited = scenario.withstands_rewrites()?;
            let late_frames = proxy.late_frames() - before;
            ensure!(
                late_frames > 0 && waited >= DELAY,
                "{late_frames} frames were late, and the router as wanted after {waited:.1?}"
            );
            Ok(())
        });
        rewritten.with_context(|| format!("with {} seen late", view.resource))?;
    }
    drop(proxy);
    cluster.end()
}

fn fate(asked: &Asked) -> Fate {
    let is_late = VIEWS.iter().any(|view| {
        asked.namespace.starts_with(view.prefix)
            && asked.resource == view.resource
            && asked.name == view.name
    });
    if is_late {
        Fate::Late(DELAY)
    } else {
        Fate::Pass
    }
}
