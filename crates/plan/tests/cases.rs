//! Does each World that is kept as a case still give the Plan beside it?
//!
//! `cargo xtask test case --bless` writes the Plans anew; read the difference before it is committed.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "support/case.rs"]
mod case;

use std::fs;

use case::Case;

#[test]
fn every_world_gives_its_plan() {
    let bless = std::env::var_os("BLESS").is_some_and(|value| value != "0");
    let mut wrong = Vec::new();
    for case in Case::all() {
        let file = case.folder.join("plan.yaml");
        let plan = serde_saphyr::to_string(&case.plan()).unwrap();
        if bless {
            fs::write(&file, plan).unwrap();
            continue;
        }
        let kept = fs::read_to_string(&file).unwrap_or_default();
        if kept != plan {
            wrong.push(format!("{}:\n{}", case.name, difference(&kept, &plan)));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} cases differ; if that is meant: cargo xtask test case --bless\n\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// A World that prints as something else than it was read from would be no use in a bug report.
#[test]
fn every_world_prints_as_itself() {
    for case in Case::all() {
        let printed = serde_saphyr::to_string(&case.world).unwrap();
        let again: spanwire_plan::World = serde_saphyr::from_str(&printed)
            .unwrap_or_else(|error| panic!("{}: {error}\n{printed}", case.name));
        assert_eq!(
            serde_saphyr::to_string(&again).unwrap(),
            printed,
            "{}",
            case.name
        );
    }
}

/// The lines that are only in one of them, in order.
fn difference(kept: &str, now: &str) -> String {
    let (kept, now): (Vec<_>, Vec<_>) = (kept.lines().collect(), now.lines().collect());
    let same = kept
        .iter()
        .zip(&now)
        .take_while(|(kept, now)| kept == now)
        .count();
    let rest = kept[same..].iter().rev().zip(now[same..].iter().rev());
    let tail = rest.take_while(|(kept, now)| kept == now).count();
    let show = |sign: &str, lines: &[&str]| {
        let lines = &lines[same..lines.len() - tail];
        let signed: Vec<String> = lines
            .iter()
            .map(|line| format!("  {sign} {line}\n"))
            .collect();
        signed.concat()
    };
    format!(
        "  at line {}\n{}{}",
        same + 1,
        show("-", &kept),
        show("+", &now)
    )
}
