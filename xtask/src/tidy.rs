//! What does no compiler check? First lines, sizes, loose ends, completeness of kinds, edges between crates.

mod promise;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use spanwire_e2e::command;

use crate::test::cargo;

/// Lines of a file before its tests.
const MOST_LINES: usize = 500;
const WITHIN: Duration = Duration::from_mins(5);
/// Spelt so that this file does not find itself.
const LOOSE_END: &str = concat!("TO", "DO");

/// Which of our crates a crate may use; what only its tests may use stands behind the bar.
const EDGES: [(&str, &[&str], &[&str]); 9] = [
    ("spanwire-api", &[], &[]),
    ("spanwire-router", &[], &[]),
    ("spanwire-plan", &["spanwire-api", "spanwire-router"], &[]),
    (
        "spanwire-operator",
        &["spanwire-plan", "spanwire-api", "spanwire-router"],
        &[],
    ),
    (
        "spanwire-adaptor",
        &["spanwire-router"],
        &["spanwire-standin"],
    ),
    ("spanwire-standin", &["spanwire-router"], &[]),
    (
        "spanwire-e2e",
        &["spanwire-api", "spanwire-router"],
        &["spanwire-standin"],
    ),
    ("spanwire-fuzz", &["spanwire-operator"], &[]),
    (
        "xtask",
        &[
            "spanwire-api",
            "spanwire-plan",
            "spanwire-e2e",
            "spanwire-fuzz",
        ],
        &[],
    ),
];

/// What decides cannot do: none of these may be reachable from `plan`.
const BEYOND_PLAN: [&str; 8] = [
    "kube",
    "kube-client",
    "kube-runtime",
    "tokio",
    "hyper",
    "rustls",
    "rcgen",
    "x509-parser",
];

/// Fails with one line for each thing that is not tidy.
pub(crate) fn run(root: &Path) -> Result<()> {
    let mut faults = Vec::new();
    let mut all = String::new();
    for path in sources(root)? {
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let name = path
            .strip_prefix(root)
            .unwrap_or(&path)
            .display()
            .to_string();
        let is_test = name
            .split('/')
            .any(|part| matches!(part, "tests" | "tests.rs"));
        faults.extend(file_faults(&text, is_test).map(|fault| format!("{name}: {fault}")));
        all += &text;
    }
    for (name, has_tables) in promise::DOCUMENTS {
        let text =
            std::fs::read_to_string(root.join(name)).with_context(|| format!("read {name}"))?;
        let found = promise::faults(&text, has_tables, &all);
        faults.extend(found.into_iter().map(|fault| format!("{name}: {fault}")));
    }
    let kinds = spanwire_api::crds();
    faults.extend(
        kinds
            .iter()
            .flat_map(|crd| kind_faults(root, &crd.spec.names.kind)),
    );
    faults.extend(edge_faults()?);
    faults.extend(reach_faults()?);
    if !faults.is_empty() {
        bail!("not tidy:\n  {}", faults.join("\n  "));
    }
    Ok(())
}

/// The Rust and Go files of the tree.
fn sources(root: &Path) -> Result<Vec<PathBuf>> {
    let mut git = Command::new("git");
    git.current_dir(root).args([
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
        "--",
        "*.rs",
        "*.go",
    ]);
    let files = command::output(&mut git, WITHIN)?;
    Ok(files
        .lines()
        .map(|file| root.join(file))
        .filter(|path| path.exists())
        .collect())
}

fn file_faults(text: &str, is_test: bool) -> impl Iterator<Item = String> {
    let first = text.lines().next().unwrap_or_default();
    let is_answering = first.starts_with("//! ") || first.starts_with("// ");
    let no_question =
        (!is_answering).then(|| "the first line does not say which question it answers".to_owned());

    let own = text
        .lines()
        .take_while(|line| !line.trim_start().starts_with("#[cfg(test)]"))
        .count();
    let too_long = (own > MOST_LINES && !is_test)
        .then(|| format!("{own} lines before its tests, {MOST_LINES} are the limit"));

    let loose = text.lines().zip(1..).filter(|(line, _)| {
        line.match_indices(LOOSE_END).any(|(at, _)| {
            let after = line.get(at + LOOSE_END.len()..).unwrap_or_default();
            !after.starts_with("(#")
        })
    });
    let loose: Vec<String> = loose
        .map(|(_, number)| format!("line {number} leaves something to do and names no issue"))
        .collect();
    no_question.into_iter().chain(too_long).chain(loose)
}

/// A kind is whole with a sample, its broken twin, a folder of cases and a controller.
fn kind_faults(root: &Path, kind: &str) -> Vec<String> {
    let module = snake(kind);
    let cases = root.join("crates/plan/tests/cases").join(&module);
    let controllers = root.join("crates/operator/src/controllers.rs");
    let has_row = std::fs::read_to_string(controllers).is_ok_and(|text| text.contains(kind));
    let complete = [
        (
            has_manifest(&root.join("config/samples"), kind),
            "sample in config/samples",
        ),
        (
            has_manifest(&root.join("config/samples/broken"), kind),
            "broken sample in config/samples/broken",
        ),
        (
            std::fs::read_dir(cases).is_ok_and(|mut cases| cases.next().is_some()),
            "case in crates/plan/tests/cases",
        ),
        (has_row, "row in the operator's controllers.rs"),
    ];
    complete
        .iter()
        .filter(|(is_there, _)| !is_there)
        .map(|(_, what)| format!("{kind} has no {what}"))
        .collect()
}

fn has_manifest(folder: &Path, kind: &str) -> bool {
    let line = format!("kind: {kind}");
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut texts = files.filter_map(|file| std::fs::read_to_string(file.path()).ok());
    texts.any(|text| text.lines().any(|candidate| candidate == line))
}

/// `RouterAccess` is `router_access`.
fn snake(kind: &str) -> String {
    let mut name = String::new();
    for letter in kind.chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.extend(letter.to_lowercase());
    }
    name
}

fn edge_faults() -> Result<Vec<String>> {
    let mut metadata = cargo();
    metadata.args(["metadata", "--no-deps", "--format-version=1"]);
    let metadata: Value = serde_json::from_str(&command::output(&mut metadata, WITHIN)?)?;
    let packages = metadata["packages"]
        .as_array()
        .context("cargo metadata names no packages")?;
    let allowed: BTreeMap<_, _> = EDGES
        .iter()
        .map(|(name, always, tests)| (*name, (*always, *tests)))
        .collect();
    let mut faults = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let Some((always, tests)) = allowed.get(name) else {
            faults.push(format!(
                "{name} is a new crate: say in tidy.rs and in ARCHITECTURE.md what it may use"
            ));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let used = dependency["name"].as_str().unwrap_or_default();
            let is_ours = dependency["path"].is_string();
            let is_allowed =
                always.contains(&used) || (dependency["kind"] == "dev" && tests.contains(&used));
            if is_ours && !is_allowed && used != name {
                faults.push(format!("{name} may not use {used}"));
            }
        }
    }
    Ok(faults)
}

fn reach_faults() -> Result<Vec<String>> {
    let mut tree = cargo();
    tree.args([
        "tree",
        "--package=spanwire-plan",
        "--edges=normal",
        "--prefix=none",
        "--format={p}",
    ]);
    let tree = command::output(&mut tree, WITHIN)?;
    let reached = tree.lines().filter_map(|line| line.split(' ').next());
    let mut faults: Vec<String> = reached
        .filter(|name| BEYOND_PLAN.contains(name))
        .map(|name| format!("spanwire-plan can reach {name}: it must not be able to do I/O"))
        .collect();
    faults.sort();
    faults.dedup();
    Ok(faults)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loose_end_names_its_issue() {
        let loose = format!("//! Why?\n// {LOOSE_END}: later\n// {LOOSE_END}(#7): later\n");
        assert_eq!(file_faults(&loose, false).count(), 1);
    }

    #[test]
    fn a_file_says_which_question_it_answers() {
        assert_eq!(file_faults("use std::fs;\n", false).count(), 1);
        assert_eq!(file_faults("//! What is it?\n", false).count(), 0);
    }

    #[test]
    fn a_kind_and_its_module_have_one_name() {
        assert_eq!(snake("RouterAccess"), "router_access");
    }
}
