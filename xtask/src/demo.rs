//! Do two sites link? The scenario of a script, end to end, before a person's eyes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use spanwire_e2e::bed::Bed;
use spanwire_e2e::cluster::Cluster;
use spanwire_e2e::images::Profile;
use spanwire_e2e::install::{self, Settings};
use spanwire_e2e::kubectl::Kubectl;
use spanwire_e2e::tally::Tally;
use spanwire_e2e::topology::{self, Topology};
use spanwire_e2e::{rest, wait, workspace};

use crate::progress::Steps;
use crate::raise;
use crate::up::ENDED;

mod picture;
mod scenario;

use scenario::Scenario;

const NAME: &str = "demo";
const SCRIPT: &str = "e2e/scenarios/two-sites.sh";
const LINKED_WITHIN: Duration = Duration::from_mins(2);
/// How long writes at rest are counted.
const REST: Duration = Duration::from_secs(5);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Use the cluster that is there, instead of making one.
    #[arg(long, value_name = "FILE", requires = "image")]
    kubeconfig: Option<PathBuf>,
    /// The image of operator and adaptor, for the cluster that is there.
    #[arg(long, value_name = "REF", requires = "kubeconfig")]
    image: Option<String>,
    /// The router's image, for the cluster that is there; the public one if absent.
    #[arg(long, value_name = "REF", requires = "kubeconfig")]
    router_image: Option<String>,
    /// One more argument for the operator in the cluster that is there, such as `--operator-arg=--cluster-host=HOST`.
    #[arg(
        long,
        value_name = "ARG",
        requires = "kubeconfig",
        allow_hyphen_values = true
    )]
    operator_arg: Vec<String>,
    /// Run this scenario: a shell script that calls kubectl and yq. It may name its namespaces in a line
    /// `# namespaces: NAME ...`.
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
    /// Leave the cluster running; `cargo xtask down demo` ends it.
    #[arg(long)]
    keep: bool,
    /// Write what was seen to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Install no Debian packages; say which are missing.
    #[arg(long)]
    no_install: bool,
}

/// The cluster that the scenario runs on.
enum Ground {
    Ours(Box<Cluster>),
    Given(Kubectl),
}

/// What the demo saw.
struct Seen {
    topology: Topology,
    tally: Tally,
    writes_at_rest: Option<usize>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let steps = Steps::default();
    let script = args
        .script
        .clone()
        .unwrap_or_else(|| workspace::root().join(SCRIPT));
    let scenario = Scenario::read(&script)?;
    let (ground, kubernetes) = ground(args, &steps)?;
    let kubectl = ground.kubectl();
    let seen = play(&steps, &ground, &kubectl, &scenario).inspect_err(|error| {
        // What was asked for in writing is given also when it went wrong.
        if let Some(path) = &args.report {
            let failure =
                json!({"linked": false, "error": format!("{error:#}"), "seconds": steps.seconds()});
            let _ = std::fs::write(path, failure.to_string());
        }
    });
    let seen = seen.with_context(|| format!("see {}", folder().join("logs").display()))?;

    println!("\n{}", picture::draw(&seen.topology));
    println!("   {}\n", counts(&seen));
    if let Some(path) = &args.report {
        let report = report(&seen, &steps, &kubernetes);
        std::fs::write(path, serde_json::to_string_pretty(&report)? + "\n")
            .with_context(|| format!("write {}", path.display()))?;
    }
    let look = format!(
        "export KUBECONFIG={} && kubectl get skupper -A",
        kubectl.kubeconfig().display()
    );
    match ground {
        Ground::Given(_) => println!("   look around:  {look}"),
        Ground::Ours(cluster) if args.keep => {
            println!("   look around:  {look}\n   end it:       cargo xtask down {NAME}");
            cluster.keep()?;
        }
        Ground::Ours(cluster) => {
            steps.run("end", |_| cluster.end().map(|()| ((), ENDED.to_owned())))?;
            println!("\n   look around:  cargo xtask demo --keep");
        }
    }
    Ok(())
}

fn ground(args: &Args, steps: &Steps) -> Result<(Ground, String)> {
    let Some(kubeconfig) = &args.kubeconfig else {
        let built = raise::build(steps, args.no_install, Profile::Bed)?;
        let cluster = raise::raise(steps, &built, NAME)?;
        return Ok((Ground::Ours(Box::new(cluster)), built.binaries.version));
    };
    // The scenario runs in another folder.
    let kubeconfig = kubeconfig
        .canonicalize()
        .with_context(|| format!("find {}", kubeconfig.display()))?;
    let kubectl = Kubectl::new(Path::new("kubectl"), &kubeconfig);
    let version = kubectl.json(&["version"])?["serverVersion"]["gitVersion"]
        .as_str()
        .unwrap_or("?")
        .to_owned();
    let settings = Settings {
        image: args.image.as_deref(),
        router_image: args.router_image.as_deref(),
        replicas: None,
        args: args.operator_arg.clone(),
    };
    steps.run("operator", |_| {
        install::operator(&kubectl, &settings, &folder().join("state/manifests"))?;
        Ok(((), "Deployment ready".to_owned()))
    })?;
    Ok((Ground::Given(kubectl), version))
}

/// Runs the scenario, waits for its links, and watches the world at rest.
fn play(steps: &Steps, ground: &Ground, kubectl: &Kubectl, scenario: &Scenario) -> Result<Seen> {
    scenario.make_namespaces(kubectl)?;
    let names = scenario.namespaces();
    steps.run("scenario", |say| {
        scenario.run(kubectl, &folder(), ground.bin().as_deref(), say)?;
        Ok(((), scenario.title()))
    })?;
    let topology = steps.run("link", |say| {
        say("waiting for every link and site");
        let topology = wait::until("the sites to be linked", LINKED_WITHIN, || {
            let topology = Topology::read(kubectl, &names)?;
            Ok(topology.is_linked().then_some(topology))
        });
        let topology = topology.map_err(|error| {
            let seen = Topology::read(kubectl, &names)
                .map(|topology| topology.complaints())
                .unwrap_or_default();
            error.context(seen)
        })?;
        Ok((topology, "every site ready, every link up".to_owned()))
    })?;
    let bed = ground.bed();
    for site in &topology.sites {
        let time = bed
            .as_ref()
            .and_then(|bed| topology::settling_time(&bed.audit(), &site.namespace));
        let seconds = time.map(|time| time.as_secs_f64());
        steps.note(&site.name, &site.summary(), seconds);
    }
    let mut watched = names.clone();
    watched.push(install::NAMESPACE);
    let writes_at_rest = steps.run("rest", |say| match &bed {
        None => Ok((
            None,
            "not counted: this cluster's audit log is not at hand".to_owned(),
        )),
        Some(bed) => {
            say("waiting until nothing is written any more");
            // A world that never rests is counted as it is.
            let _ = rest::reached(bed, &watched);
            let mark = bed.audit().mark()?;
            wait::for_period(REST)?;
            let writes = rest::writes(bed, mark, &watched)?.len();
            Ok((
                Some(writes),
                format!("{writes} writes in {} s but the Lease", REST.as_secs()),
            ))
        }
    })?;
    let tally = Tally::take(kubectl, &watched)?;
    Ok(Seen {
        topology,
        tally,
        writes_at_rest,
    })
}

fn counts(seen: &Seen) -> String {
    let Tally {
        router_starts,
        router_exits,
        container_restarts,
    } = seen.tally;
    let counted = format!(
        "routers started {router_starts} · exits {router_exits} · container restarts {container_restarts}"
    );
    match seen.writes_at_rest {
        Some(writes) => format!("{counted} · writes at rest {writes}"),
        None => counted,
    }
}

fn report(seen: &Seen, steps: &Steps, kubernetes: &str) -> Value {
    json!({
        "linked": seen.topology.is_linked(),
        "router_starts": seen.tally.router_starts,
        "router_exits": seen.tally.router_exits,
        "container_restarts": seen.tally.container_restarts,
        "writes_at_rest": seen.writes_at_rest,
        "seconds": steps.seconds(),
        "versions": {"spanwire": env!("CARGO_PKG_VERSION"), "kubernetes": kubernetes.trim_start_matches('v')},
    })
}

/// Where the script runs.
fn folder() -> PathBuf {
    workspace::target().join(NAME)
}

impl Ground {
    fn kubectl(&self) -> Kubectl {
        match self {
            Ground::Ours(cluster) => cluster.kubectl(),
            Ground::Given(kubectl) => kubectl.clone(),
        }
    }

    /// A folder with the kubectl that belongs to the cluster.
    fn bin(&self) -> Option<PathBuf> {
        match self {
            Ground::Ours(cluster) => Some(cluster.bin()),
            Ground::Given(_) => None,
        }
    }

    /// The cluster with its audit log, if it is ours.
    fn bed(&self) -> Option<Bed> {
        match self {
            Ground::Ours(cluster) => Some(Bed::of(cluster)),
            Ground::Given(_) => None,
        }
    }
}
