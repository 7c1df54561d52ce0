//! What does a test do again and again in a namespace of its own?

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use crate::audit::{Mark, Request};
use crate::bed::Bed;
pub use crate::kubectl::text;
use crate::kubectl::{Kubectl, condition};
use crate::namespace::Namespaces;
use crate::wait;

/// How long a status or a child may take to come; on a busy machine pods are what takes longest.
pub const WITHIN: Duration = Duration::from_mins(2);

/// How often something is tried that should be prompt.
const ATTEMPTS: usize = 4;

/// A namespace of the shared bed that enforces the Pod Security Standard `restricted`.
#[derive(Debug)]
pub struct Scene {
    pub bed: &'static Bed,
    pub kubectl: Kubectl,
    pub namespace: String,
}

/// Set where the long versions are asked for.
pub const FULL: &str = "SPANWIRE_FULL";

/// Whether the long versions are asked for.
pub fn is_full() -> bool {
    std::env::var_os(FULL).is_some()
}

/// Calls `test` with a namespace that is deleted afterwards, and described first if the test fails.
pub fn play(namespace: &str, test: impl FnOnce(&Scene) -> Result<()>) -> Result<()> {
    let bed = Bed::shared()?;
    let namespaces = Namespaces::make(bed, &[namespace])?;
    let scene = Scene {
        bed,
        kubectl: bed.kubectl(),
        namespace: namespace.to_owned(),
    };
    let enforce = "pod-security.kubernetes.io/enforce=restricted";
    scene
        .kubectl
        .run(&["label", "namespace", namespace, enforce])?;
    test(&scene)?;
    namespaces.passed()
}

impl Scene {
    /// A command in this namespace.
    pub fn run(&self, args: &[&str]) -> Result<String> {
        self.kubectl
            .run(&[args, &["--namespace", &self.namespace]].concat())
    }

    /// Applies objects as the test's own field manager.
    pub fn apply(&self, objects: impl IntoIterator<Item = Value>) -> Result<()> {
        let items: Vec<Value> = objects.into_iter().collect();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
        self.kubectl
            .apply(&list.to_string(), &["--namespace", &self.namespace])
            .map(drop)
    }

    /// An object, which has to be there.
    pub fn get(&self, kind: &str, name: &str) -> Result<Value> {
        self.find(kind, name)?
            .with_context(|| format!("there is no {kind} {name}"))
    }

    /// An object, if it is there.
    pub fn find(&self, kind: &str, name: &str) -> Result<Option<Value>> {
        self.kubectl
            .find(&[kind, name, "--namespace", &self.namespace])
    }

    /// Looks at an object until `is_so` holds, and fails after `within` with what the object was then.
    pub fn wait(
        &self,
        what: &str,
        within: Duration,
        (kind, name): (&str, &str),
        is_so: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let mut last = None;
        let found = wait::until(what, within, || {
            last = self.find(kind, name)?;
            Ok(last.clone().filter(|object| is_so(object)))
        });
        found.with_context(|| {
            let status = last.as_ref().map(|object| &object["status"]);
            format!(
                "{kind} {name}: {}",
                status.unwrap_or(&Value::Null).to_owned()
            )
        })
    }

    /// Waits until a condition of an object is True.
    pub fn holds(&self, kind: &str, name: &str, of: &str) -> Result<Value> {
        let what = format!("{kind} {name} to be {of}");
        self.wait(&what, WITHIN, (kind, name), |object| {
            condition(object, of).is_some_and(|condition| condition["status"] == "True")
        })
    }

    /// Waits until a condition of an object is False for this reason, and gives back its sentence.
    pub fn refused(&self, kind: &str, name: &str, of: &str, reason: &str) -> Result<String> {
        let what = format!("{kind} {name} not to be {of}, for reason {reason}");
        let object = self.wait(&what, WITHIN, (kind, name), |object| {
            condition(object, of).is_some_and(|condition| {
                condition["status"] == "False" && condition["reason"] == reason
            })
        })?;
        let condition = condition(&object, of).context("a condition")?;
        ensure!(
            condition["observedGeneration"] == object["metadata"]["generation"],
            "{kind} {name} tells of another generation: {condition}"
        );
        Ok(text(&condition["message"]).to_owned())
    }

    /// Changes an object by a merge patch.
    pub fn merge(&self, kind: &str, name: &str, patch: &Value) -> Result<()> {
        let patch = patch.to_string();
        self.run(&["patch", kind, name, "--type=merge", "--patch", &patch])
            .map(drop)
    }

    /// Calls `harm`, which changes the object `name` and waits until it is as it should be, and fails if the operator
    /// does not write it within `limit`, by the clock of the API server. One late write may be the machine's, which
    /// is busy with other tests; that several are is ours.
    pub fn is_prompt(
        &self,
        name: &str,
        limit: Duration,
        mut harm: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        let mut waits = Vec::new();
        for _ in 0..ATTEMPTS {
            let mark = self.bed.audit().mark()?;
            harm()?;
            let waited = self.answer(mark, name)?;
            if waited <= limit {
                return Ok(());
            }
            waits.push(waited);
        }
        bail!("it was written after {waits:.1?}, and should within {limit:?}")
    }

    /// Deletes a leaf's Secret, as often as [`Scene::is_prompt`] tries, and fails unless it is back within `limit` with
    /// another key from the same CA.
    pub fn leaf_comes_back(&self, name: &str, limit: Duration) -> Result<()> {
        self.is_prompt(name, limit, || {
            let before = self.get("secret", name)?;
            self.delete("secret", name)?;
            let after = self.wait(
                "the Secret to be back",
                WITHIN,
                ("secret", name),
                |secret| secret["metadata"]["uid"] != before["metadata"]["uid"],
            )?;
            ensure!(after["data"]["ca.crt"] == before["data"]["ca.crt"]);
            ensure!(after["data"]["tls.key"] != before["data"]["tls.key"]);
            Ok(())
        })
    }

    /// How long our last write of an object came after the first of a person since the mark.
    fn answer(&self, mark: Mark, name: &str) -> Result<Duration> {
        let mut writes = self.bed.audit().since(mark)?;
        writes.retain(|request| {
            let object = &request.object_ref;
            let is_here = object.namespace == self.namespace && object.name == name;
            is_here && object.subresource.is_empty() && request.is_write()
        });
        let is_a_persons = |request: &&Request| !request.user.username.starts_with("system:");
        let harm = writes.iter().find(is_a_persons);
        let harm = harm.context("nobody changed it")?;
        let repair = writes.iter().rfind(|request| {
            request.is_ours() && request.object_ref.resource == harm.object_ref.resource
        });
        let waited = repair.and_then(|repair| harm.until(repair));
        waited.with_context(|| format!("no write of ours after: {harm}"))
    }

    /// Deletes an object, and waits until it is gone.
    pub fn delete(&self, kind: &str, name: &str) -> Result<()> {
        self.run(&["delete", kind, name]).map(drop)
    }
}

/// An object of the API group, of the version that is stored.
pub fn ours(kind: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "skupper.io/v2alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    })
}
