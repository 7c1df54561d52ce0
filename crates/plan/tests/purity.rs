//! Can a plan do anything but think?

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use k8s_openapi::jiff::Timestamp;
use spanwire_plan::{Config, Env, World, kinds};

/// What the crate may be built with: types, text and a hash.
const ALLOWED: [&str; 7] = [
    "k8s-openapi",
    "kube-core",
    "serde",
    "serde_json",
    "sha2",
    "spanwire-api",
    "spanwire-router",
];

/// What a clock, a die, a socket or a key would be called by.
const BANNED: [&str; 9] = [
    "::now()",
    "SystemTime",
    "std::net::Tcp",
    "std::net::Udp",
    "std::env::var",
    "std::fs",
    "std::thread",
    "async ",
    "rand::",
];

#[test]
fn plan_has_no_clock_no_chance_and_no_keys() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let dependencies: BTreeSet<&str> = manifest
        .lines()
        .skip_while(|line| *line != "[dependencies]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split(['.', ' ', '=']).next())
        .filter(|name| !name.is_empty())
        .collect();
    assert_eq!(dependencies, BTreeSet::from(ALLOWED));
    for file in sources(&root.join("src")) {
        let text = fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap();
        for banned in BANNED {
            assert!(!code.contains(banned), "{} says {banned:?}", file.display());
        }
    }
}

#[test]
fn the_same_world_gives_the_same_plan() {
    let config = Config::default();
    let env = Env {
        now: Timestamp::from_second(1_900_000_000).unwrap(),
        nonce: 7,
        config: &config,
    };
    let world: World = serde_json::from_value(serde_json::json!({
        "namespace": "west",
        "sites": [{"metadata": {"name": "west", "namespace": "west", "uid": "u"}, "spec": {"ha": true}}],
    }))
    .unwrap();
    assert_eq!(
        kinds::plans(&world, &env),
        kinds::plans(&world.clone(), &env)
    );
}

fn sources(folder: &Path) -> Vec<std::path::PathBuf> {
    fs::read_dir(folder)
        .unwrap()
        .flat_map(|entry| {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path)
            } else {
                vec![path]
            }
        })
        .collect()
}
