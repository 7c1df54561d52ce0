//! Where does a test work? In namespaces of its own, which tell what happened in them if it fails.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde_json::json;

use crate::audit::AuditLog;
use crate::bed::Bed;
use crate::kubectl::Kubectl;
use crate::{history, install};

/// Namespaces of one test. They are deleted when dropped; unless [`Namespaces::passed`] was called, what is in them is
/// written down first.
#[derive(Debug)]
pub struct Namespaces {
    kubectl: Kubectl,
    audit: AuditLog,
    names: Vec<String>,
    story: PathBuf,
    has_passed: bool,
}

impl Namespaces {
    /// Makes `names`.
    pub fn make(bed: &Bed, names: &[&str]) -> Result<Namespaces> {
        let kubectl = bed.kubectl();
        make(&kubectl, names)?;
        let story = bed.failures()?.join(format!("{}.txt", names.join("+")));
        Ok(Namespaces {
            kubectl,
            audit: bed.audit(),
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            story,
            has_passed: false,
        })
    }

    /// Says that there is nothing to write down, unless the order in which things were stored was ever wrong.
    pub fn passed(mut self) -> Result<()> {
        history::is_in_order(&self.audit, AuditLog::START, &self.names)?;
        self.has_passed = true;
        Ok(())
    }

    /// What a person would look at first.
    fn tell(&self) -> String {
        let mut story = String::new();
        let log = format!("deployment/{}", install::DEPLOYMENT);
        self.tell_one(
            &mut story,
            install::NAMESPACE,
            &[
                &["logs", &log, "--tail=200"],
                &["get", "pods", "--output=wide"],
            ],
        );
        for name in &self.names {
            let questions: [&[&str]; 5] = [
                &[
                    "get",
                    "pods,services,deployments,configmaps,secrets",
                    "--output=wide",
                ],
                &["get", "skupper", "--output=wide"],
                &["describe", "skupper"],
                &["get", "events", "--sort-by=.lastTimestamp"],
                &[
                    "logs",
                    "--selector=skupper.io/component=router",
                    "--all-containers",
                    "--prefix",
                    "--tail=100",
                ],
            ];
            self.tell_one(&mut story, name, &questions);
        }
        story
    }

    fn tell_one(&self, story: &mut String, namespace: &str, questions: &[&[&str]]) {
        for question in questions {
            let _ = writeln!(
                story,
                "\n## kubectl {} --namespace {namespace}",
                question.join(" ")
            );
            if let Ok(answer) = self
                .kubectl
                .attempt(&[question, &["--namespace", namespace][..]].concat(), None)
            {
                story.extend([answer.stdout, answer.stderr]);
            }
        }
    }
}

/// Makes namespaces that may be there already.
pub fn make(kubectl: &Kubectl, names: &[&str]) -> Result<()> {
    let items = names
        .iter()
        .map(|name| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}));
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items.collect::<Vec<_>>()});
    kubectl
        .apply(&list.to_string(), &[])
        .map(drop)
        .context("make namespaces")
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        if !self.has_passed {
            // The test has failed already, and says why.
            let _ = std::fs::write(&self.story, self.tell());
        }
        let names = self.names.iter().map(String::as_str);
        let args: Vec<&str> = ["delete", "namespace", "--wait=false", "--ignore-not-found"]
            .into_iter()
            .chain(names)
            .collect();
        let _ = self.kubectl.run(&args);
    }
}
