//! How often did routers start, exit, and containers restart? From the pods' statuses and the adaptors' reports.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::Serialize;
use serde_json::Value;
use spanwire_router::report::{REPORT_CONFIG_MAP, Report, report_key};

use crate::kubectl::{Kubectl, text};

/// The container that a router runs in.
const ROUTER: &str = "router";

/// Counts over some namespaces.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Tally {
    pub router_starts: u64,
    pub router_exits: u64,
    pub container_restarts: u64,
}

/// What the routers' adaptors of a namespace report, by pod.
pub fn reports(kubectl: &Kubectl, namespace: &str) -> Result<BTreeMap<String, Report>> {
    let map = kubectl.find(&["configmap", REPORT_CONFIG_MAP, "--namespace", namespace])?;
    let data = map
        .as_ref()
        .and_then(|map| map["data"].as_object())
        .into_iter()
        .flatten();
    let reports =
        data.filter_map(|(pod, text)| Some((pod.clone(), Report::parse(text.as_str()?).ok()?)));
    Ok(reports.collect())
}

impl Tally {
    /// Counts what happened to the pods that are in `namespaces` now.
    pub fn take(kubectl: &Kubectl, namespaces: &[&str]) -> Result<Tally> {
        let mut tally = Tally::default();
        for namespace in namespaces {
            let reports = reports(kubectl, namespace)?;
            for pod in kubectl.items(&["pods", "--namespace", namespace])? {
                let (name, uid) = (
                    text(&pod["metadata"]["name"]),
                    text(&pod["metadata"]["uid"]),
                );
                tally.add(&pod, reports.get(&report_key(name, uid)));
            }
        }
        Ok(tally)
    }

    /// Kubelet and adaptor each see what the other may not: the kubelet a container's end, the adaptor a router's.
    fn add(&mut self, pod: &Value, report: Option<&Report>) {
        for container in pod["status"]["containerStatuses"]
            .as_array()
            .into_iter()
            .flatten()
        {
            let restarts = container["restartCount"].as_u64().unwrap_or_default();
            self.container_restarts += restarts;
            if container["name"] == ROUTER {
                let seen = report.map(|report| &report.router);
                let starts = restarts + u64::from(container["started"] == true);
                self.router_starts += starts.max(seen.map_or(0, |router| router.starts.into()));
                self.router_exits += restarts.max(seen.map_or(0, |router| router.exits.into()));
            }
        }
    }
}
