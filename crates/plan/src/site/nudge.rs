//! Which router pods have not seen the newest state yet, and when are they asked to look?
//!
//! A changed annotation makes the kubelet refresh the volumes of a pod in under a second instead of 75
//! (`facts/order.md`). It may overtake the object that it is about, so it is repeated, ever more slowly, until the pod
//! reports the revision.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;

use crate::labels;
use crate::plan::{Act, Nudge};
use crate::site::deployment::ADAPTOR;
use crate::world::World;

/// The kubelet looks at a pod once a second at most.
const SPACING: i64 = 1;
/// An adaptor that has just started reads its mount by itself.
const WARM_UP: i64 = 2;
/// The longest wait between two tries.
const SLOWEST: i64 = 60;

/// What to do about one pod.
#[derive(Debug, PartialEq, Eq)]
enum Need {
    /// It is up to date, or cannot be.
    Nothing,
    /// Look again after so many seconds.
    Wait(i64),
    /// Nudge it with this value.
    Now(String),
}

/// Nudges for the pods whose revision is not the wanted one, and when to look again.
pub(crate) fn nudges(
    world: &World,
    wanted: impl Fn(&str) -> Option<String>,
    now: Timestamp,
) -> (Vec<Act>, Option<Duration>) {
    let mut acts = Vec::new();
    let mut again: Option<i64> = None;
    let mut look_again = |seconds: i64| again = Some(again.map_or(seconds, |old| old.min(seconds)));
    for (pod, report) in world.routers() {
        let Some(revision) = group(pod).and_then(&wanted) else {
            continue;
        };
        let reported = report.map(|report| report.revision.as_str());
        match need(pod, &revision, reported, now.as_second()) {
            Need::Nothing => {}
            Need::Wait(seconds) => look_again(seconds),
            Need::Now(value) => {
                look_again(SPACING);
                acts.push(Act::Nudge(Nudge {
                    namespace: pod.metadata.namespace.clone().unwrap_or_default(),
                    pod: pod.metadata.name.clone().unwrap_or_default(),
                    uid: pod.metadata.uid.clone().unwrap_or_default(),
                    value,
                }));
            }
        }
    }
    let again = again
        .and_then(|seconds| u64::try_from(seconds).ok())
        .map(Duration::from_secs);
    (acts, again)
}

/// The group that a pod of ours belongs to.
pub(crate) fn group(pod: &Pod) -> Option<&str> {
    pod.metadata
        .labels
        .as_ref()?
        .get(labels::GROUP)
        .map(String::as_str)
}

fn need(pod: &Pod, revision: &str, reported: Option<&str>, now: i64) -> Need {
    if reported == Some(revision) {
        return Need::Nothing;
    }
    // Without a running adaptor nobody would notice; its start is news.
    let Some(started) = adaptor_start(pod) else {
        return Need::Nothing;
    };
    if reported.is_none() && now < started + WARM_UP {
        return Need::Wait(started + WARM_UP - now);
    }
    let last = pod
        .metadata
        .annotations
        .as_ref()
        .and_then(|map| Stamp::parse(map.get(labels::NUDGE)?));
    let (tries, due) = match last {
        None => (1, now),
        Some(last) if last.revision == revision => {
            let pause = 1_i64 << (last.tries.clamp(1, 7) - 1);
            (last.tries.saturating_add(1), last.at + pause.min(SLOWEST))
        }
        Some(last) => (1, last.at + SPACING),
    };
    // A stamp from the future is one of another clock: it is no reason to wait longer than ever.
    if now < due && due - now <= SLOWEST {
        return Need::Wait(due - now);
    }
    Need::Now(format!("{revision}.{tries}.{now}"))
}

/// When the adaptor's container was started, in Unix seconds, if it runs.
fn adaptor_start(pod: &Pod) -> Option<i64> {
    let status = pod.status.as_ref()?;
    if status.phase.as_deref() != Some("Running") {
        return None;
    }
    let containers = status.container_statuses.as_ref()?;
    let adaptor = containers
        .iter()
        .find(|container| container.name == ADAPTOR)?;
    let running = adaptor.state.as_ref()?.running.as_ref()?;
    Some(
        running
            .started_at
            .as_ref()
            .map_or(0, |time| time.0.as_second()),
    )
}

/// A nudge's value, `<revision>.<try>.<unix seconds>`.
struct Stamp<'a> {
    revision: &'a str,
    tries: u32,
    at: i64,
}

impl<'a> Stamp<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let mut parts = text.split('.');
        let (revision, tries, at) = (parts.next()?, parts.next()?, parts.next()?);
        Some(Self {
            revision,
            tries: tries.parse().ok()?,
            at: at.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(nudge: Option<&str>, started: i64) -> Pod {
        let started = Timestamp::from_second(started).unwrap();
        let mut pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "skupper-router-1"},
            "status": {"phase": "Running", "containerStatuses": [{
                "name": "kube-adaptor", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "state": {"running": {"startedAt": started.to_string()}},
            }]},
        }))
        .unwrap();
        pod.metadata.annotations = nudge.map(|nudge| labels::map([(labels::NUDGE, nudge)]));
        pod
    }

    #[test]
    fn a_pod_that_reports_the_revision_is_left_alone() {
        assert_eq!(need(&pod(None, 0), "new", Some("new"), 100), Need::Nothing);
    }

    #[test]
    fn a_new_revision_is_told_at_once_but_not_twice_a_second() {
        assert_eq!(
            need(&pod(None, 0), "new", Some("old"), 100),
            Need::Now("new.1.100".into())
        );
        let nudged = pod(Some("old.3.100"), 0);
        assert_eq!(need(&nudged, "new", Some("old"), 100), Need::Wait(1));
        assert_eq!(
            need(&nudged, "new", Some("old"), 101),
            Need::Now("new.1.101".into())
        );
    }

    #[test]
    fn a_nudge_is_repeated_ever_more_slowly() {
        for (tries, pause) in [(1, 1), (2, 2), (3, 4), (6, 32), (7, 60), (400, 60)] {
            let pod = pod(Some(&format!("new.{tries}.100")), 0);
            assert_eq!(
                need(&pod, "new", None, 100),
                Need::Wait(pause),
                "try {tries}"
            );
            let next = format!("new.{}.{}", tries + 1, 100 + pause);
            assert_eq!(need(&pod, "new", None, 100 + pause), Need::Now(next));
        }
    }

    #[test]
    fn an_adaptor_that_has_just_started_reads_by_itself() {
        assert_eq!(need(&pod(None, 99), "new", None, 100), Need::Wait(1));
        assert_eq!(
            need(&pod(None, 98), "new", None, 100),
            Need::Now("new.1.100".into())
        );
    }

    #[test]
    fn a_pod_without_a_running_adaptor_is_not_nudged() {
        let mut held = pod(None, 0);
        held.status.as_mut().unwrap().phase = Some("Pending".into());
        assert_eq!(need(&held, "new", None, 100), Need::Nothing);
    }

    #[test]
    fn junk_or_a_stamp_from_the_future_delays_nothing() {
        assert_eq!(
            need(&pod(Some("junk"), 0), "new", None, 100),
            Need::Now("new.1.100".into())
        );
        let future = pod(Some("new.2.999999"), 0);
        assert_eq!(
            need(&future, "new", None, 100),
            Need::Now("new.3.100".into())
        );
    }
}
