//! How does one run go? A namespace, an operator for it, the steps of a workload, and the end to which each step has to come.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::json;
use spanwire_e2e::audit::{AuditLog, Mark};
use spanwire_e2e::cluster::Cluster;
use spanwire_e2e::fault_proxy::FaultProxy;
use spanwire_e2e::images::Profile;
use spanwire_e2e::kubectl::{Kubectl, text};
use spanwire_e2e::operator::Operator;
use spanwire_e2e::site::Site;
use spanwire_e2e::snapshot::Snapshot;
use spanwire_e2e::{bed, history, wait};

use super::fault::{Plot, Script, Weather};
use super::workload::{Peer, Place, Workload};

/// The namespace of the site that grants.
const PEER: &str = "peer";
const STEP_WITHIN: Duration = Duration::from_mins(1);
/// For how long nothing is written when a step without a fault is over, and when a run rests.
const QUIET: Duration = Duration::from_secs(3);
const REST: Duration = Duration::from_secs(2);
/// When it is worth looking how far a step is: nothing was written for this long, or nothing was looked at.
const LULL: Duration = Duration::from_millis(300);
const LOOK_EVERY: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(50);

/// A control plane, the road to it, and the site that others link to.
pub(super) struct Stage {
    // Dropped first: it would complain about the rest.
    granting: Operator,
    peer: Peer,
    programs: PathBuf,
    diverted: Kubectl,
    script: Arc<Script>,
    proxy: FaultProxy,
    cluster: Cluster,
    runs: AtomicUsize,
}

/// What happens in a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    /// A number of [`Workload::all`].
    pub(super) workload: usize,
    /// Nothing, where what is compared is how the same ends twice.
    pub(super) plot: Option<Plot>,
}

/// How a workload goes without a fault.
#[derive(Debug, Default)]
pub(super) struct Record {
    pub(super) writes: usize,
    /// What is there after each step.
    states: Vec<Snapshot>,
    /// How many certificates each Secret had.
    certificates: BTreeMap<String, usize>,
}

impl Stage {
    pub(super) fn set() -> Result<Stage> {
        let (cluster, programs) = bed::without_operator(Profile::Bed)?;
        let kubectl = cluster.kubectl();
        let logs = cluster.dir().join("logs");
        let script = Arc::new(Script::default());
        let deciding = script.clone();
        let (proxy, kubeconfig) = cluster.divert_admin(move |asked| deciding.fate(asked))?;
        let diverted = Kubectl::new(&cluster.bin().join("kubectl"), &kubeconfig);
        let granting = Operator::start_in(PEER, &programs, &kubectl, &logs, &[])?;
        let site = Site::make(&kubectl, PEER, &json!({"linkAccess": "default"}))?;
        let spec = json!({"redemptionsAllowed": 100_000, "expirationWindow": "12h"});
        let grant = site.grant("all", &spec)?;
        let peer = Peer::new(&grant, granting.grants().1)?;
        Ok(Stage {
            granting,
            peer,
            programs,
            diverted,
            script,
            proxy,
            cluster,
            runs: AtomicUsize::new(0),
        })
    }

    pub(super) fn end(self) -> Result<()> {
        let Stage {
            granting, cluster, ..
        } = self;
        drop(granting);
        cluster.end()
    }

    /// How a workload goes without a fault.
    pub(super) fn undisturbed(&self, workload: &Workload) -> Result<Record> {
        let mut run = Run::begin(self, workload, None, None)?;
        let mut states = Vec::new();
        for step in &workload.steps {
            (step.act)(&run.place)?;
            states.push(run.settled(step.is_done)?);
        }
        let (writes, _) = self.script.writes(&run.place.namespace);
        let certificates = run.certificates()?;
        run.end()?;
        Ok(Record {
            writes,
            states,
            certificates,
        })
    }

    /// Runs a workload that comes to the same end although something happens at one of its writes, and then rests. Says
    /// whether there was such a write.
    ///
    /// The first record is that of the workload that is the operator's start.
    pub(super) fn disturbed(
        &self,
        workload: &Workload,
        records: &[Record],
        point: Point,
    ) -> Result<bool> {
        let record = records.get(point.workload);
        let record = record.context("a run without a fault")?;
        let start = records.first().and_then(|start| start.states.last());
        let is_long = workload.steps.len() > 1;
        let plot = point.plot.filter(|plot| !(is_long && plot.is_spell()));
        let mut run = Run::begin(self, workload, plot, start)?;
        let namespace = run.place.namespace.clone();
        let hit = |error: anyhow::Error| {
            let hit = self.script.hit(&namespace);
            error.context(format!("{namespace}, hit: {hit:?}"))
        };
        for (number, (step, state)) in workload.steps.iter().zip(&record.states).enumerate() {
            if is_long && number + 1 == workload.steps.len() && point.plot != plot {
                // What went before is the way to where it matters.
                self.script.arm(&namespace, point.plot);
            }
            (step.act)(&run.place)?;
            let comes_to = run.comes_to(state);
            comes_to
                .with_context(|| format!("step {number}"))
                .map_err(hit)?;
        }
        run.rests(record).map_err(hit)?;
        if let Some(Plot::For(period, weather)) = point.plot {
            run.was_patient(period, weather).map_err(hit)?;
        }
        let is_hit = self.script.hit(&namespace).is_some();
        run.end()?;
        Ok(is_hit)
    }
}

/// A run under way.
struct Run<'a> {
    stage: &'a Stage,
    operator: Operator,
    place: Place<'a>,
    mark: Mark,
    plot: Option<Plot>,
}

impl<'a> Run<'a> {
    /// Starts an operator in a new namespace, and waits until it has made what it needs for itself, which is `start` where
    /// that is known; to make it is a workload of its own.
    fn begin(
        stage: &'a Stage,
        workload: &Workload,
        plot: Option<Plot>,
        start: Option<&Snapshot>,
    ) -> Result<Self> {
        let number = stage.runs.fetch_add(1, Ordering::Relaxed);
        let namespace = format!("{}-{number}", workload.name);
        let mark = AuditLog::new(&stage.cluster.audit_log()).mark()?;
        stage
            .script
            .arm(&namespace, plot.filter(|_| workload.is_of_start));
        let logs = stage.cluster.dir().join("logs");
        let operator =
            Operator::start_in(&namespace, &stage.programs, &stage.diverted, &logs, &[])?;
        let mut run = Run {
            stage,
            operator,
            place: Place {
                kubectl: stage.cluster.kubectl(),
                namespace,
                peer: &stage.peer,
            },
            mark,
            plot,
        };
        if !workload.is_of_start {
            match start {
                Some(start) => run.comes_to(start)?,
                None => drop(run.settled(|_| true)?),
            }
            stage.script.arm(&run.place.namespace, plot);
        }
        Ok(run)
    }

    /// Waits until nothing is written any more.
    fn settled(&mut self, is_done: fn(&Snapshot) -> bool) -> Result<Snapshot> {
        let start = Instant::now();
        let mut before = Snapshot::default();
        while start.elapsed() < STEP_WITHIN {
            self.operator.check()?;
            let (writes, since) = self.stage.script.writes(&self.place.namespace);
            if writes > 0 && since > QUIET {
                let now = self.snapshot()?;
                if now == before && is_done(&now) {
                    return Ok(now);
                }
                before = now;
            }
            wait::for_period(POLL * 4)?;
        }
        bail!("{} does not settle", self.place.namespace)
    }

    /// Waits until all is as it was without a fault.
    fn comes_to(&mut self, state: &Snapshot) -> Result<()> {
        let start = Instant::now();
        let (mut looked, mut seen) = (Instant::now(), 0);
        let mut differences = vec!["never looked".to_owned()];
        while start.elapsed() < STEP_WITHIN {
            self.die_if_due()?;
            let (writes, since) = self.stage.script.writes(&self.place.namespace);
            // What is there while something goes wrong may be what is wanted, and has to be so at the end of it.
            let is_over = !self.stage.script.is_on(&self.place.namespace);
            let is_lull =
                is_over && since > LULL && (writes != seen || looked.elapsed() > LOOK_EVERY);
            if is_lull {
                (looked, seen) = (Instant::now(), writes);
                differences = self.snapshot()?.differences(state);
                if differences.is_empty() {
                    return Ok(());
                }
            }
            wait::for_period(POLL)?;
        }
        bail!(
            "it did not come to the same end:\n{}",
            differences.join("\n")
        )
    }

    /// Kills the operator where it is held, and starts it again.
    fn die_if_due(&mut self) -> Result<()> {
        let is_held = self.stage.proxy.held(Some(&self.place.namespace)) > 0;
        let is_deadly = |plot: &mut Plot| matches!(plot, Plot::At(_, fault) if fault.kills());
        if is_held && self.plot.take_if(is_deadly).is_some() {
            self.operator.restart()?;
        }
        self.operator.check()
    }

    /// Fails if anything is written any more, if credentials came too late, or if a certificate was made that is not made
    /// without a fault.
    fn rests(&mut self, record: &Record) -> Result<()> {
        let namespace = &self.place.namespace;
        let (before, _) = self.stage.script.writes(namespace);
        wait::for_period(REST)?;
        let (after, _) = self.stage.script.writes(namespace);
        ensure!(after == before, "{} writes at rest", after - before);
        self.operator.check()?;
        history::is_in_order(&self.audit(), self.mark, &[namespace])?;
        let certificates = self.certificates()?;
        for (secret, count) in &certificates {
            // Fewer where two changes were seen as one.
            let most = record.certificates.get(secret).copied().unwrap_or_default();
            ensure!(
                *count <= most,
                "{secret} had {count} certificates, not {most}"
            );
        }
        Ok(())
    }

    /// Fails if more was asked while something went wrong than makes sense.
    fn was_patient(&self, period: Duration, weather: Weather) -> Result<()> {
        let requests = self.stage.script.requests(&self.place.namespace);
        let most = weather.most_requests();
        let most = most.map(|most| most * usize::try_from(period.as_secs()).unwrap_or_default());
        ensure!(
            most.is_none_or(|most| requests <= most),
            "{requests} requests within {period:?}"
        );
        Ok(())
    }

    fn certificates(&self) -> Result<BTreeMap<String, usize>> {
        history::certificates(&self.audit(), self.mark, &self.place.namespace)
    }

    fn audit(&self) -> AuditLog {
        AuditLog::new(&self.stage.cluster.audit_log())
    }

    fn snapshot(&self) -> Result<Snapshot> {
        let Place {
            kubectl, namespace, ..
        } = &self.place;
        // The url of a token names the peer's grant, which is in another namespace.
        let peer = (
            self.stage.peer.uid.clone(),
            "<uid of the peer's grant>".to_owned(),
        );
        Snapshot::take(kubectl, namespace, &[peer])
    }

    fn end(self) -> Result<()> {
        drop(self.operator);
        let delete = ["delete", "namespace", "--wait=false", &self.place.namespace];
        self.place.kubectl.run(&delete).map(drop)
    }
}

impl Peer {
    fn new(grant: &serde_json::Value, port: u16) -> Result<Peer> {
        Ok(Peer {
            uid: text(&grant["metadata"]["uid"]).to_owned(),
            token: spanwire_e2e::site::token_for(grant, port)?,
        })
    }
}
