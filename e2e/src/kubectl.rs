//! How do tests and tasks talk to a cluster? As its users do: with kubectl.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::command::{self, Answer};
use crate::{wait, workspace};

const WITHIN: Duration = Duration::from_mins(2);

/// The command-line tool, pointed at one cluster.
#[derive(Clone, Debug)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
}

impl Kubectl {
    pub fn new(program: &Path, kubeconfig: &Path) -> Self {
        Self {
            program: program.to_owned(),
            kubeconfig: kubeconfig.to_owned(),
        }
    }

    /// The file that says where the cluster is and who we are.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// A command to which more can be added before it runs.
    pub fn command<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = Command::new(&self.program);
        command.envs(self.environment()).args(args);
        command
    }

    /// What makes any kubectl talk to this cluster, and keep what it learns of it where it goes with the cluster: not in a
    /// person's home, where another cluster at the same address would be taken for it.
    pub fn environment(&self) -> [(&'static str, PathBuf); 2] {
        let target = workspace::target();
        let folder = self.kubeconfig.parent();
        let ours = folder.filter(|folder| folder.starts_with(&target));
        let cache = ours.map_or_else(|| target.join("tmp"), |folder| folder.join("state"));
        [
            ("KUBECONFIG", self.kubeconfig.clone()),
            ("KUBECACHEDIR", cache.join("kubectl")),
        ]
    }

    /// What it prints; an error if it fails.
    pub fn run(&self, args: &[&str]) -> Result<String> {
        command::output(&mut self.command(args.iter().copied()), WITHIN)
    }

    /// How it ended, be it well or not.
    pub fn attempt(&self, args: &[&str], input: Option<&str>) -> Result<Answer> {
        let mut command = self.command(args.iter().copied());
        command::answer(&mut command, input.map(str::as_bytes), WITHIN)
    }

    /// What it prints, parsed; `-o json` is added.
    pub fn json(&self, args: &[&str]) -> Result<Value> {
        let text = self.run(&[args, &["--output=json"]].concat())?;
        serde_json::from_str(&text).context("parse what kubectl printed")
    }

    /// The object that `args` name, or nothing if it is not there.
    pub fn find(&self, args: &[&str]) -> Result<Option<Value>> {
        let text =
            self.run(&[&["get"], args, &["--output=json", "--ignore-not-found"]].concat())?;
        if text.trim().is_empty() {
            return Ok(None);
        }
        serde_json::from_str(&text)
            .map(Some)
            .context("parse what kubectl printed")
    }

    /// The items of a list.
    pub fn items(&self, args: &[&str]) -> Result<Vec<Value>> {
        let list = self.json(&[&["get"], args].concat())?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    /// Applies a manifest, YAML or JSON, on the server's side.
    pub fn apply(&self, manifest: &str, more: &[&str]) -> Result<String> {
        let args = [&["apply", "--server-side", "--filename=-"], more].concat();
        self.attempt(&args, Some(manifest))?.ok("kubectl apply")
    }

    /// Looks at an object until `condition` holds; it may not be there yet.
    pub fn wait_for(
        &self,
        what: &str,
        within: Duration,
        args: &[&str],
        condition: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        wait::until(what, within, || {
            Ok(self.find(args)?.filter(|object| condition(object)))
        })
    }
}

/// Whether an object's status has the condition `kind` at `True`.
pub fn has_condition(object: &Value, kind: &str) -> bool {
    condition(object, kind).is_some_and(|condition| condition["status"] == "True")
}

/// The condition `kind` of an object.
pub fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["status"]["conditions"]
        .as_array()?
        .iter()
        .find(|condition| condition["type"] == kind)
}

/// The text of a field, empty if it is not there.
pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
