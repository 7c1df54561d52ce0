//! Does an operator that comes first get on, however late comes what it needs? It is started once, and never again.
//!
//! On a control plane of its own, which has none of our definitions at first, with an operator outside of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use spanwire_e2e::fault_proxy::Fate;
use spanwire_e2e::images::Profile;
use spanwire_e2e::operator::Operator;
use spanwire_e2e::redeemer::{self, Grant, Redeemer};
use spanwire_e2e::scene::{self, ours};
use spanwire_e2e::{bed, install, namespace, wait, workspace};

const NAMESPACE: &str = "east";
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How late everything is.
fn late() -> Duration {
    Duration::from_secs(if scene::is_full() { 60 } else { 10 })
}

/// At first the API server refuses everything, and then it does not know the definitions.
#[test]
fn a_grant_is_ready_however_late_the_operator_gets_what_it_needs() -> Result<()> {
    let (cluster, programs) = bed::bare(Profile::Bed)?;
    let kubectl = cluster.kubectl();
    let deploy = workspace::root().join("config/deploy");
    let apply = ["apply", "--server-side", "--kustomize"];
    kubectl.run(&[&apply[..], &[&deploy.to_string_lossy()]].concat())?;

    let is_sick = Arc::new(AtomicBool::new(true));
    let refused = Arc::new(AtomicUsize::new(0));
    let (sick, refusals) = (is_sick.clone(), refused.clone());
    let (_proxy, kubeconfig) = cluster.divert_admin(move |_| {
        if sick.load(Ordering::Relaxed) {
            refusals.fetch_add(1, Ordering::Relaxed);
            Fate::Refuse(503)
        } else {
            Fate::Pass
        }
    })?;
    let logs = cluster.dir().join("logs");
    let mut operator = Operator::start(&programs, &kubeconfig, 0, &logs)?;
    waits(&mut operator).context("while the API server is not well")?;
    ensure!(refused.load(Ordering::Relaxed) > 0, "it asked for nothing");
    is_sick.store(false, Ordering::Relaxed);
    waits(&mut operator).context("while there are no definitions")?;
    install::definitions(&kubectl)?;

    namespace::make(&kubectl, &[NAMESPACE])?;
    let site = ours("Site", "east", &json!({"linkAccess": "default"}));
    kubectl.apply(&site.to_string(), &["--namespace", NAMESPACE])?;
    let grants = Grant::make(&kubectl, NAMESPACE, [("late", 1)])?;
    let redeemer = Redeemer {
        source: redeemer::source(0),
        subject: "west".to_owned(),
        nonce: None,
    };
    let said = redeemer.redeem(operator.grants(), grants.first().context("a grant")?)?;
    ensure!(said.status == 200, "{} {}", said.status, said.body);
    // Nobody has started it again.
    operator.check()?;
    drop(operator);
    cluster.end()
}

/// For as long as everything is late, the operator is alive and not ready.
fn waits(operator: &mut Operator) -> Result<()> {
    wait::until("the operator to be alive", scene::WITHIN, || {
        operator.check()?;
        Ok(operator
            .health("/healthz")
            .ok()
            .filter(|status| *status == 200))
    })?;
    let start = Instant::now();
    while start.elapsed() < late() {
        operator.check()?;
        let (alive, ready) = (operator.health("/healthz")?, operator.health("/readyz")?);
        ensure!(alive == 200, "not alive: {alive}");
        ensure!(ready == 503, "ready for nothing: {ready}");
        wait::for_period(LOOK_EVERY)?;
    }
    Ok(())
}
