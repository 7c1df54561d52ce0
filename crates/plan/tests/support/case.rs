//! Which Worlds are kept as cases, and what is asked of each?
//!
//! `cases/<kind>/<what_happens>/world.yaml` is two YAML documents: what is asked (the object, the time, and the
//! configuration where it is not the default), and a World as it prints. `plan.yaml` beside it is the answer.

#![allow(dead_code, unreachable_pub, reason = "each test target uses its share")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs;
use std::path::{Path, PathBuf};

use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use spanwire_plan::plan::{ObjectKind, Ref};
use spanwire_plan::{Config, Env, Plan, World, kinds};

/// One folder of `cases`.
pub struct Case {
    pub folder: PathBuf,
    /// `<kind>/<what_happens>`.
    pub name: String,
    pub question: Question,
    pub world: World,
}

/// What is asked of a World.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// `<Kind>/<name>`.
    pub object: String,
    pub now: Timestamp,
    #[serde(default)]
    pub config: Config,
}

impl Case {
    /// Every case, by name.
    pub fn all() -> Vec<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
        let mut cases: Vec<Self> = folders(&root)
            .iter()
            .flat_map(|kind| folders(kind))
            .map(Self::read)
            .collect();
        cases.sort_by(|a, b| a.name.cmp(&b.name));
        assert!(!cases.is_empty(), "no cases in {}", root.display());
        cases
    }

    fn read(folder: PathBuf) -> Self {
        let name: Vec<_> = folder
            .iter()
            .rev()
            .take(2)
            .map(|part| part.to_string_lossy())
            .collect();
        let name = format!("{}/{}", name[1], name[0]);
        let text = fs::read_to_string(folder.join("world.yaml"))
            .unwrap_or_else(|error| panic!("{name}/world.yaml: {error}"));
        let (question, world) = text
            .split_once("\n---\n")
            .unwrap_or_else(|| panic!("{name}: two documents are wanted"));
        let question = serde_saphyr::from_str(question)
            .unwrap_or_else(|error| panic!("{name}: the question: {error}"));
        let world = serde_saphyr::from_str(world)
            .unwrap_or_else(|error| panic!("{name}: the World: {error}"));
        Self {
            folder,
            name,
            question,
            world,
        }
    }

    pub fn env(&self) -> Env<'_> {
        Env {
            now: self.question.now,
            nonce: 7,
            config: &self.question.config,
        }
    }

    /// Which object is asked about.
    pub fn object(&self) -> Ref {
        let (kind, name) = self.question.object.split_once('/').unwrap();
        let kind: ObjectKind = serde_json::from_value(kind.into())
            .unwrap_or_else(|error| panic!("{}: {error}", self.name));
        Ref {
            kind,
            namespace: self.world.namespace.clone(),
            name: name.to_owned(),
        }
    }

    /// The answer.
    pub fn plan(&self) -> Plan {
        let object = self.object();
        kinds::plans(&self.world, &self.env())
            .remove(&object)
            .unwrap_or_else(|| panic!("{}: the World has no {object:?}", self.name))
    }
}

fn folders(parent: &Path) -> Vec<PathBuf> {
    fs::read_dir(parent)
        .unwrap_or_else(|error| panic!("{}: {error}", parent.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .collect()
}
