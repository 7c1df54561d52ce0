//! Who asked the API server for what? Its audit log, read from a mark on.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// The audit log of a cluster.
#[derive(Clone, Debug)]
pub struct AuditLog {
    path: PathBuf,
}

/// A moment in the log.
#[derive(Clone, Copy, Debug)]
pub struct Mark(u64);

/// One request that was answered.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    pub verb: String,
    pub user: User,
    #[serde(default)]
    pub object_ref: Object,
    #[serde(default)]
    pub response_status: Status,
    #[serde(default)]
    pub user_agent: String,
    /// Path and query.
    #[serde(default, rename = "requestURI")]
    pub uri: String,
    /// When it was answered, RFC 3339 with microseconds.
    #[serde(default)]
    pub stage_timestamp: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct User {
    pub username: String,
}

/// What a request was about.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Object {
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct Status {
    #[serde(default)]
    pub code: u16,
}

impl AuditLog {
    /// When the cluster started.
    pub const START: Mark = Mark(0);

    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
        }
    }

    /// Now. The log is written before a request is answered, so nothing answered earlier comes after the mark.
    pub fn mark(&self) -> Result<Mark> {
        let metadata = std::fs::metadata(&self.path)
            .with_context(|| format!("look at {}", self.path.display()))?;
        Ok(Mark(metadata.len()))
    }

    /// The requests that were answered after the mark.
    pub fn since(&self, mark: Mark) -> Result<Vec<Request>> {
        self.entries(mark, |_| true)
    }

    /// The same for the lines that are `wanted`, with as much of each as `T` takes.
    pub(crate) fn entries<T: DeserializeOwned>(
        &self,
        mark: Mark,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<Vec<T>> {
        let mut file =
            File::open(&self.path).with_context(|| format!("open {}", self.path.display()))?;
        file.seek(SeekFrom::Start(mark.0))?;
        let mut requests = Vec::new();
        for line in BufReader::new(file).lines() {
            let line = line?;
            // The last line may still be on its way.
            if let Some(request) = wanted(&line)
                .then(|| serde_json::from_str(&line).ok())
                .flatten()
            {
                requests.push(request);
            }
        }
        Ok(requests)
    }
}

impl Request {
    /// Whether it came from the operator or from a router pod: a service account that is not Kubernetes' own, or whoever
    /// an operator outside its cluster acts for.
    pub fn is_ours(&self) -> bool {
        let account = self.user.username.strip_prefix("system:serviceaccount:");
        let is_in_cluster = account.is_some_and(|name| !name.starts_with("kube-system:"));
        is_in_cluster || self.user_agent.starts_with("spanwire/")
    }

    /// Whether it would change something.
    pub fn is_write(&self) -> bool {
        matches!(
            self.verb.as_str(),
            "create" | "update" | "patch" | "delete" | "deletecollection"
        )
    }

    /// How long after this request a later one was answered, where both are of one day.
    pub fn until(&self, later: &Request) -> Option<Duration> {
        later.time_of_day()?.checked_sub(self.time_of_day()?)
    }

    /// When it was answered, of the day.
    pub(crate) fn time_of_day(&self) -> Option<Duration> {
        let (_, time) = self.stage_timestamp.strip_suffix('Z')?.split_once('T')?;
        let mut parts = time.split(':').map(str::parse::<f64>);
        let mut part = || parts.next()?.ok();
        let (hours, minutes, seconds) = (part()?, part()?, part()?);
        Duration::try_from_secs_f64((hours * 60.0 + minutes) * 60.0 + seconds).ok()
    }

    /// Whether it is about a Lease: the one thing that is written at rest.
    pub fn is_lease(&self) -> bool {
        self.object_ref.resource == "leases"
    }
}

impl std::fmt::Display for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Object {
            resource,
            subresource,
            namespace,
            name,
        } = &self.object_ref;
        write!(f, "{} {} {resource}", self.user.username, self.verb)?;
        if !subresource.is_empty() {
            write!(f, "/{subresource}")?;
        }
        write!(f, " {namespace}/{name} -> {}", self.response_status.code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_of_a_router_pod_is_ours() {
        let line = r#"{"kind":"Event","verb":"patch","user":{"username":"system:serviceaccount:west:skupper-router"},
            "objectRef":{"resource":"configmaps","namespace":"west","name":"skupper-router-report"},
            "responseStatus":{"code":200},"stageTimestamp":"2026-11-30T20:43:59.500000Z"}"#;
        let request: Request = serde_json::from_str(line).unwrap();
        let later = Request {
            stage_timestamp: "2026-11-30T20:44:01.250000Z".to_owned(),
            ..request.clone()
        };
        assert_eq!(request.until(&later), Some(Duration::from_millis(1750)));
        assert!(request.is_ours() && request.is_write() && !request.is_lease());
        assert_eq!(
            request.to_string(),
            "system:serviceaccount:west:skupper-router patch configmaps west/skupper-router-report -> 200"
        );
    }
}
