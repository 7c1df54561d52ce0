//! Does a grant end when it should, and a token at all, where the clock of the operator's machine is a year off?
//!
//! On a control plane of its own, with an operator outside of it for either site (F15 of `faults.md`).

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use spanwire_e2e::bed;
use spanwire_e2e::cluster::Cluster;
use spanwire_e2e::images::Profile;
use spanwire_e2e::kubectl::text;
use spanwire_e2e::operator::Operator;
use spanwire_e2e::site::{Site, token_for};

const SITES: [&str; 2] = ["east", "west"];
const YEAR: &str = "8760h";
const WINDOW: &str = "20m";
/// How long after its creation a grant with that window may end: the window, and the time until it was first seen.
const LATEST: SignedDuration = SignedDuration::from_mins(21);
const EARLIEST: SignedDuration = SignedDuration::from_mins(20);

struct Stage {
    programs: PathBuf,
    cluster: Cluster,
}

impl Stage {
    /// Starts the operators of both sites, on machines that are this far ahead.
    fn operators(&self, offsets: [&str; 2]) -> Result<Vec<Operator>> {
        let (kubectl, logs) = (self.cluster.kubectl(), self.cluster.dir().join("logs"));
        let start = |(site, offset)| {
            let more = [format!("--clock-offset={offset}")];
            Operator::start_in(site, &self.programs, &kubectl, &logs, &more)
        };
        SITES.into_iter().zip(offsets).map(start).collect()
    }
}

#[test]
fn a_clock_that_is_a_year_off_neither_ends_a_grant_nor_makes_it_last() -> Result<()> {
    let (cluster, programs) = bed::without_operator(Profile::Bed)?;
    let kubectl = cluster.kubectl();
    let stage = Stage { programs, cluster };
    let right = || stage.operators(["0s", "0s"]);

    let mut operators = right()?;
    let sites = SITES.map(|site| Site::make(&kubectl, site, &json!({"linkAccess": "default"})));
    let [east, west] = sites;
    let sites = [east?, west?];
    // Made while the clocks are right; each is to be redeemed three times.
    let early = grants(&sites, "early")?;
    exchange(&sites, &operators, &early, "right")?;

    drop(operators);
    operators = stage.operators([YEAR, &format!("-{YEAR}")])?;
    let late = grants(&sites, "late")?;
    for grant in early.iter().chain(&late) {
        let (made, end) = (
            time(&grant["metadata"]["creationTimestamp"])?,
            time(&grant["status"]["expirationTime"])?,
        );
        let lasts = end.duration_since(made);
        ensure!((EARLIEST..LATEST).contains(&lasts), "it lasts {lasts}");
    }
    exchange(&sites, &operators, &early, "early-wrong")?;
    exchange(&sites, &operators, &late, "late-wrong")?;

    drop(operators);
    operators = right()?;
    exchange(&sites, &operators, &early, "early-again")?;
    exchange(&sites, &operators, &late, "late-again")?;
    drop(operators);
    stage.cluster.end()
}

/// A grant of each site.
fn grants(sites: &[Site; 2], name: &str) -> Result<Vec<Value>> {
    let spec = json!({"redemptionsAllowed": 3, "expirationWindow": WINDOW});
    sites.iter().map(|site| site.grant(name, &spec)).collect()
}

/// Each site redeems the grant of the other.
fn exchange(
    sites: &[Site; 2],
    operators: &[Operator],
    grants: &[Value],
    token: &str,
) -> Result<()> {
    let takers = sites.iter().rev();
    for ((taker, operator), grant) in takers.zip(operators).zip(grants) {
        let (_, port) = operator.grants();
        taker.token(token, &token_for(grant, port)?)?;
        taker
            .redeemed(token)
            .with_context(|| format!("{token} for {}", grant["metadata"]["namespace"]))?;
    }
    Ok(())
}

fn time(of: &Value) -> Result<Timestamp> {
    text(of).parse().with_context(|| format!("{of} is no time"))
}
