//! What do strangers get out of the operator who mean no good: those who redeem, and those at whom is redeemed?
//!
//! On a control plane of its own, with one operator outside of it, whose memory is looked at from outside.

mod answers;
mod requests;

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use spanwire_e2e::cluster::Cluster;
use spanwire_e2e::images::Profile;
use spanwire_e2e::kubectl::Kubectl;
use spanwire_e2e::operator::Operator;
use spanwire_e2e::redeemer::{Grant, Redeemer};
use spanwire_e2e::scene::ours;
use spanwire_e2e::{bed, namespace};

/// In everything that strangers send.
const MARKER: &str = "MARKER";
/// What strangers may cost, in kilobytes.
const MEMORY: u64 = 8 * 1024;
/// How long one of them may keep the operator busy.
const WITHIN: Duration = Duration::from_secs(15);
/// The namespace of a site that gives, and of one that takes.
const GIVES: &str = "east";
const TAKES: &str = "west";

/// A control plane, and an operator that runs outside of it.
struct Stage {
    // Dropped first: it would complain about the rest.
    operator: Operator,
    cluster: Cluster,
}

impl Stage {
    fn set() -> Result<Stage> {
        let (cluster, programs) = bed::without_operator(Profile::Bed)?;
        let logs = cluster.dir().join("logs");
        let operator = Operator::start(&programs, &cluster.kubeconfig(), 0, &logs)?;
        let stage = Stage { operator, cluster };
        namespace::make(&stage.kubectl(), &[GIVES, TAKES])?;
        for name in [GIVES, TAKES] {
            let site = ours("Site", name, &json!({"linkAccess": "default"}));
            stage.apply(name, &site)?;
        }
        Ok(stage)
    }

    fn kubectl(&self) -> Kubectl {
        self.cluster.kubectl()
    }

    fn apply(&self, namespace: &str, object: &serde_json::Value) -> Result<()> {
        let kubectl = self.kubectl();
        kubectl
            .apply(&object.to_string(), &["--namespace", namespace])
            .map(drop)
    }

    /// A grant that can be redeemed once.
    fn grant(&self, name: &str) -> Result<Grant> {
        let made = Grant::make(&self.kubectl(), GIVES, [(name, 1)])?;
        made.into_iter().next().context("a grant")
    }

    /// Redeems a grant as a good client does.
    fn redeem(&self, grant: &Grant) -> Result<()> {
        let redeemer = Redeemer {
            source: Ipv4Addr::new(127, 0, 0, 200),
            subject: "good".to_owned(),
            nonce: Some("good".to_owned()),
        };
        let said = redeemer.redeem(self.operator.grants(), grant)?;
        ensure!(said.status == 200, "{} {}", said.status, said.body);
        Ok(())
    }
}

#[test]
fn strangers_cost_little_and_get_nothing() -> Result<()> {
    let stage = Stage::set()?;
    // What is made once is not theirs.
    stage.redeem(&stage.grant("first")?)?;
    let (knocks, cost) = requests::are_refused(&stage)?;
    println!("{knocks} hostile requests cost {cost} kB");
    let (answers, cost) = answers::are_refused(&stage)?;
    println!("{answers} hostile answers cost {cost} kB");
    let Stage { operator, cluster } = stage;
    drop(operator);
    cluster.end()
}
