//! Can a person, and a program, act on every status that is ever planned?
//!
//! A linter over the statuses of all objects of all cases.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "support/case.rs"]
mod case;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use case::Case;
use serde_json::Value;
use spanwire_plan::kinds::plans;
use spanwire_plan::plan::{ObjectKind, Status, Verdict, Word};
use spanwire_plan::report::{Cut, cut_short, report};

/// Kinds that have a status of ours: the file that documents its reasons, its conditions, and those that Ready is the
/// sum of, in upstream's order (`facts/skupper-v2.md` §1.3).
const KINDS: [(ObjectKind, &str, &[&str], &[&str]); 7] = [
    (
        ObjectKind::Site,
        "site",
        &["Configured", "Running", "Resolved"],
        &["Configured", "Running"],
    ),
    (
        ObjectKind::Link,
        "link",
        &["Configured", "Operational"],
        &["Configured", "Operational"],
    ),
    (
        ObjectKind::RouterAccess,
        "router_access",
        &["Configured", "Resolved"],
        &["Configured", "Resolved"],
    ),
    (
        ObjectKind::SecuredAccess,
        "secured_access",
        &["Configured", "Resolved"],
        &["Configured", "Resolved"],
    ),
    (
        ObjectKind::Certificate,
        "certificate",
        &["Ready", "RemoteTrust"],
        &[],
    ),
    (
        ObjectKind::AccessGrant,
        "access_grant",
        &["Processed", "Resolved"],
        &["Processed", "Resolved"],
    ),
    (ObjectKind::AccessToken, "access_token", &["Redeemed"], &[]),
];

/// What the operator calls an act that failed, whatever kind it was for.
const FAILED: [&str; 3] = ["NameTaken", "TooLarge", "WriteFailed"];

fn statuses(mut look: impl FnMut(&str, ObjectKind, &Status, &Case)) {
    for case in Case::all() {
        for (object, plan) in plans(&case.world, &case.env()) {
            let name = format!("{} ({:?}/{})", case.name, object.kind, object.name);
            if let Some(status) = &plan.status {
                look(&name, object.kind, status, &case);
            }
        }
    }
}

fn verdicts(mut look: impl FnMut(&str, ObjectKind, &Verdict)) {
    statuses(|name, kind, status, _| {
        for verdict in &status.verdicts {
            look(name, kind, verdict);
        }
    });
}

/// The reasons that the objects of all cases may carry: as planned, summed up, after an act that failed, and after a
/// pass that was cut short.
fn carried(mut look: impl FnMut(&str, ObjectKind, &str)) {
    for case in Case::all() {
        let now = case.question.now;
        for (object, plan) in plans(&case.world, &case.env()) {
            let Some(status) = &plan.status else { continue };
            let name = format!("{} ({:?}/{})", case.name, object.kind, object.name);
            let cut = |cut| cut_short(&Value::Null, 1, (object.kind, &object.name), cut, now);
            let reports = [
                report(&Value::Null, 1, status, &[], now),
                cut(Cut::Panicked),
                cut(Cut::TimedOut(Duration::from_secs(30))),
            ];
            for report in reports {
                for condition in report.unwrap().status["conditions"].as_array().unwrap() {
                    look(&name, object.kind, condition["reason"].as_str().unwrap());
                }
            }
            if !plan.stages.is_empty() {
                for reason in FAILED {
                    look(&name, object.kind, reason);
                }
            }
        }
    }
}

#[test]
fn every_reason_is_documented_beside_its_kind() {
    let documented: BTreeMap<ObjectKind, Reasons> = KINDS
        .into_iter()
        .map(|(kind, file, ..)| (kind, reasons(file)))
        .collect();
    carried(|name, kind, reason| {
        assert!(
            reason.starts_with(|c: char| c.is_ascii_uppercase())
                && reason.chars().all(|c| c.is_ascii_alphanumeric()),
            "{name}: reason {reason:?} is not PascalCase"
        );
        let Reasons { own, shared } = &documented[&kind];
        assert!(
            own.values()
                .chain(shared.values())
                .any(|known| known == reason),
            "{name}: reason {reason} is not documented"
        );
    });
}

/// A reason that no case of its kind shows has to be told by a source: one of the kind's, or any if kinds share it.
#[test]
fn every_documented_reason_is_told() {
    let mut shown: BTreeSet<(ObjectKind, String)> = BTreeSet::new();
    carried(|_, kind, reason| {
        shown.insert((kind, reason.to_owned()));
    });
    let sources = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    for (kind, file, ..) in KINDS {
        let is_told = |name: &str, path: &str| {
            sources.iter().any(|(source, text)| {
                source.to_string_lossy().contains(path)
                    && text
                        .split(&format!("reason::{name}"))
                        .skip(1)
                        .any(|rest| !rest.starts_with(|c: char| c == '_' || c.is_alphanumeric()))
            })
        };
        let Reasons { own, shared } = reasons(file);
        for (reasons, path) in [(own, file), (shared, "")] {
            for (name, reason) in reasons {
                assert!(
                    shown.contains(&(kind, reason)) || is_told(&name, path),
                    "{file}: nothing tells {name}"
                );
            }
        }
    }
}

#[test]
fn what_is_true_is_ready_and_what_is_not_has_a_reason_of_its_own() {
    verdicts(|name, _, verdict| {
        assert_eq!(
            verdict.word == Word::Ready,
            verdict.reason == "Ready",
            "{name}: {verdict:?}"
        );
        assert_ne!(verdict.reason, "Error", "{name}: {verdict:?}");
    });
}

#[test]
fn messages_are_sentences_for_a_person() {
    verdicts(|name, _, verdict| {
        let message = &verdict.message;
        assert!(!message.trim().is_empty(), "{name}: no message");
        assert_eq!(message.trim(), message, "{name}: {message:?}");
        assert!(
            !message.ends_with(['.', ':', ';', ',']),
            "{name}: {message:?}"
        );
        assert!(
            message.chars().all(|c| c == '\n' || !c.is_control()),
            "{name}: {message:?}"
        );
        // The API server's limit (`facts/skupper-v2.md` §1.1).
        assert!(message.len() <= 32_768, "{name}: {} bytes", message.len());
    });
}

#[test]
fn each_kind_has_its_conditions_and_their_sum() {
    statuses(|name, kind, status, _| {
        let (_, _, conditions, sum) = KINDS
            .into_iter()
            .find(|(known, ..)| *known == kind)
            .unwrap();
        for verdict in &status.verdicts {
            assert!(
                conditions.contains(&verdict.condition),
                "{name}: {verdict:?}"
            );
        }
        let told: BTreeSet<_> = status
            .verdicts
            .iter()
            .map(|verdict| verdict.condition)
            .collect();
        assert_eq!(
            told.len(),
            status.verdicts.len(),
            "{name}: a condition is told twice"
        );
        // Where nothing can be known of the rest, what is wrong is the whole sum.
        let is_cut = sum.starts_with(status.sum_of) && !status.verdicts.iter().all(Verdict::holds);
        assert!(
            is_cut || status.sum_of.starts_with(sum),
            "{name}: {:?}",
            status.sum_of
        );
    });
}

#[test]
fn ready_is_never_true_while_a_part_is_missing() {
    statuses(|name, _, status, case| {
        let report = report(&Value::Null, 1, status, &[], case.question.now).unwrap();
        let conditions = report.status["conditions"].as_array().unwrap();
        let is_true = |kind: &str| {
            conditions
                .iter()
                .any(|condition| condition["type"] == kind && condition["status"] == "True")
        };
        let are_all_true = match status.sum_of {
            // What follows the first is of others: a certificate is ready whoever trusts its CA.
            [] => status.verdicts.first().is_some_and(Verdict::holds),
            required => required.iter().all(|kind| is_true(kind)),
        };
        assert_eq!(
            report.status["status"] == "Ready",
            are_all_true,
            "{name}: {:#?}",
            report.status
        );
        if !status.sum_of.is_empty() {
            assert_eq!(
                is_true("Ready"),
                are_all_true,
                "{name}: {:#?}",
                report.status
            );
        }
    });
}

#[test]
fn what_was_said_once_is_not_said_again() {
    statuses(|name, _, status, case| {
        let first = report(&Value::Null, 1, status, &[], case.question.now).unwrap();
        let mut live = Value::Object(first.status);
        live.as_object_mut()
            .unwrap()
            .retain(|_, value| !value.is_null());
        let status = Status {
            code: None,
            ..status.clone()
        };
        assert_eq!(
            report(&live, 1, &status, &[], case.question.now),
            None,
            "{name}"
        );
    });
}

#[test]
fn no_plan_touches_what_others_write() {
    statuses(|name, kind, status, _| {
        for field in [
            "conditions",
            "status",
            "message",
            "code",
            "redemptions",
            "claims",
        ] {
            assert!(!status.fields.contains_key(field), "{name}: {field}");
        }
        assert!(
            status.code.is_none() || kind == ObjectKind::AccessGrant,
            "{name}"
        );
    });
}

/// What the `reason` module of a file of `spanwire_api` says, by the names of the constants.
struct Reasons {
    own: BTreeMap<String, String>,
    shared: BTreeMap<String, String>,
}

fn reasons(file: &str) -> Reasons {
    let mut common = constants(&reason_module("condition"));
    let module = reason_module(file);
    let taken_over = module
        .split_once("reason::{")
        .and_then(|(_, rest)| rest.split_once('}'));
    let names = taken_over.map_or("", |(list, _)| list).split(',');
    let shared = names.map(str::trim).filter(|name| !name.is_empty());
    let shared = shared.map(|name| {
        common
            .remove_entry(name)
            .unwrap_or_else(|| panic!("{file}: {name}?"))
    });
    Reasons {
        shared: shared.collect(),
        own: constants(&module),
    }
}

/// The files below a folder, with their text.
fn sources(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else {
            let text = fs::read_to_string(&path).unwrap();
            found.push((path, text));
        }
    }
    found
}

fn reason_module(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../api/src/{file}.rs"));
    let source =
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let (_, module) = source
        .split_once("pub mod reason {")
        .unwrap_or_else(|| panic!("{file} has no reasons"));
    module.split_once("\n}").unwrap().0.to_owned()
}

/// `pub const NAME: &str = "Value";`, each with a comment in front of it.
fn constants(module: &str) -> BTreeMap<String, String> {
    let lines: Vec<&str> = module.lines().map(str::trim).collect();
    let mut constants = BTreeMap::new();
    for (before, line) in lines.iter().zip(&lines[1..]) {
        let Some((name, value)) = line
            .strip_prefix("pub const ")
            .and_then(|line| line.strip_suffix("\";"))
            .and_then(|line| line.split_once(": &str = \""))
        else {
            continue;
        };
        assert!(before.starts_with("///"), "reason {name} is not explained");
        constants.insert(name.to_owned(), value.to_owned());
    }
    constants
}
