//! What does the API server accept, and what does it refuse? The definitions, the samples and their broken twins.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use spanwire_e2e::bed::Bed;
use spanwire_e2e::binaries;
use spanwire_e2e::cluster::{Cluster, Wanted};
use spanwire_e2e::kubectl::{Kubectl, has_condition};
use spanwire_e2e::namespace::{self, Namespaces};
use spanwire_e2e::workspace;

/// The oldest version that this API server can behave as.
const OLDEST: &str = "1.34";
const ESTABLISHED_WITHIN: Duration = Duration::from_secs(30);
const GROUP: &str = "skupper.io";

#[test]
fn the_definitions_are_established() -> Result<()> {
    definitions_are_established(&Bed::shared()?.kubectl())
}

#[test]
fn every_sample_is_accepted() -> Result<()> {
    in_a_namespace("contract-samples", samples_are_accepted)
}

#[test]
fn every_broken_twin_is_refused_with_its_sentence() -> Result<()> {
    in_a_namespace("contract-broken", broken_twins_are_refused)
}

#[test]
fn what_is_written_in_one_version_is_read_in_the_other() -> Result<()> {
    in_a_namespace("contract-versions", versions_lose_nothing)
}

#[test]
fn an_object_without_a_spec_is_accepted() -> Result<()> {
    in_a_namespace("contract-empty", spec_may_be_absent)
}

#[test]
fn the_oldest_server_keeps_the_same_contract() -> Result<()> {
    let binaries = binaries::control_plane(&|_| ())?;
    let wanted = Wanted {
        name: "oldest",
        has_node: false,
        has_definitions: true,
        emulated_version: Some(OLDEST),
    };
    let cluster = Cluster::start(&binaries, wanted, &|_| ())?;
    let kubectl = cluster.kubectl();
    let version = kubectl.json(&["version"])?;
    ensure!(
        version["serverVersion"]["emulationMinor"] == "34",
        "not emulated: {version}"
    );

    namespace::make(&kubectl, &["contract"])?;
    definitions_are_established(&kubectl)?;
    samples_are_accepted(&kubectl, "contract")?;
    broken_twins_are_refused(&kubectl, "contract")?;
    versions_lose_nothing(&kubectl, "contract")?;
    spec_may_be_absent(&kubectl, "contract")
}

/// Calls `check` with a namespace of the bed that belongs to another controller, so that ours keeps out of it.
fn in_a_namespace(name: &str, check: impl FnOnce(&Kubectl, &str) -> Result<()>) -> Result<()> {
    let bed = Bed::shared()?;
    let namespaces = Namespaces::make(bed, &[name])?;
    let kubectl = bed.kubectl();
    let elsewhere = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "skupper"},
        "data": {"controller": "nowhere/nobody"},
    });
    kubectl.apply(&elsewhere.to_string(), &["--namespace", name])?;
    check(&kubectl, name)?;
    namespaces.passed()
}

fn definitions_are_established(kubectl: &Kubectl) -> Result<()> {
    for definition in spanwire_api::crds() {
        let name = definition.metadata.name.unwrap_or_default();
        kubectl.wait_for(
            &name,
            ESTABLISHED_WITHIN,
            &["customresourcedefinition", &name],
            |definition| has_condition(definition, "Established"),
        )?;
        let found = kubectl.json(&["get", "customresourcedefinition", &name])?;
        ensure!(
            !has_condition(&found, "NonStructuralSchema"),
            "{name} has a schema that is not structural"
        );
    }
    Ok(())
}

fn samples_are_accepted(kubectl: &Kubectl, namespace: &str) -> Result<()> {
    for sample in manifests("config/samples")? {
        create(kubectl, namespace, &sample)
            .with_context(|| format!("{} is refused", sample.display()))?;
    }
    Ok(())
}

fn broken_twins_are_refused(kubectl: &Kubectl, namespace: &str) -> Result<()> {
    for twin in manifests("config/samples/broken")? {
        let name = twin.display();
        let text = std::fs::read_to_string(&twin)?;
        let mut expected = text
            .lines()
            .filter_map(|line| line.strip_prefix("# expect:"))
            .map(str::trim)
            .peekable();
        ensure!(
            expected.peek().is_some(),
            "{name} does not say what it expects"
        );
        let refusal = match create(kubectl, namespace, &twin) {
            Ok(_) => anyhow::bail!("{name} is accepted"),
            Err(error) => format!("{error:#}"),
        };
        for sentence in expected {
            ensure!(
                refusal.contains(sentence),
                "{name} is refused, but not with `{sentence}`:\n{refusal}"
            );
        }
    }
    Ok(())
}

/// Each sample is written as one version and read as the other, both ways; nothing of its spec may be lost.
fn versions_lose_nothing(kubectl: &Kubectl, namespace: &str) -> Result<()> {
    for sample in manifests("config/samples")? {
        for object in objects(&create(kubectl, namespace, &sample)?)? {
            let kind = object["kind"].as_str().unwrap_or_default().to_lowercase();
            for (written, read) in [("v1alpha1", "v2alpha1"), ("v2alpha1", "v1alpha1")] {
                let mut wanted = object.clone();
                wanted["apiVersion"] = format!("{GROUP}/{written}").into();
                wanted["metadata"] = json!({"name": format!("{kind}-{written}")});
                kubectl.apply(&wanted.to_string(), &["--namespace", namespace])?;
                let name = wanted["metadata"]["name"].as_str().unwrap_or_default();
                let found = kubectl.json(&[
                    "get",
                    &format!("{kind}.{read}.{GROUP}"),
                    name,
                    "--namespace",
                    namespace,
                ])?;
                ensure!(
                    found["spec"] == object["spec"],
                    "{kind} written as {written} is read as {read} with {}, not {}",
                    found["spec"],
                    object["spec"]
                );
            }
        }
    }
    Ok(())
}

fn spec_may_be_absent(kubectl: &Kubectl, namespace: &str) -> Result<()> {
    for version in ["v1alpha1", "v2alpha1"] {
        let name = format!("empty-{version}");
        let site = json!({"apiVersion": format!("{GROUP}/{version}"), "kind": "Site", "metadata": {"name": name}});
        kubectl.apply(&site.to_string(), &["--namespace", namespace])?;
    }
    Ok(())
}

/// Asks the server whether it would create the objects of a file; nothing is kept.
fn create(kubectl: &Kubectl, namespace: &str, file: &Path) -> Result<String> {
    let file = file.to_string_lossy();
    let args = [
        "create",
        "--dry-run=server",
        "--output=json",
        "--validate=strict",
        "--namespace",
        namespace,
        "--filename",
        &file,
    ];
    kubectl.attempt(&args, None)?.ok("kubectl create")
}

/// The objects that kubectl printed: one, or a list.
fn objects(printed: &str) -> Result<Vec<Value>> {
    let printed: Value = serde_json::from_str(printed).context("parse what kubectl printed")?;
    let items = printed["items"]
        .as_array()
        .cloned()
        .unwrap_or_else(|| vec![printed.clone()]);
    let ours = items.into_iter().filter(|item| {
        item["apiVersion"]
            .as_str()
            .is_some_and(|version| version.starts_with(GROUP))
    });
    Ok(ours.collect())
}

fn manifests(folder: &str) -> Result<Vec<PathBuf>> {
    let folder = workspace::root().join(folder);
    let entries =
        std::fs::read_dir(&folder).with_context(|| format!("read {}", folder.display()))?;
    let paths = entries.flatten().map(|entry| entry.path());
    let mut files: Vec<_> = paths
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "yaml")
        })
        .collect();
    files.sort();
    ensure!(!files.is_empty(), "no manifests in {}", folder.display());
    Ok(files)
}
