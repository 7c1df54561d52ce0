//! What becomes of a Deployment of routers?

use k8s_openapi::api::apps::v1::Deployment;
use serde_json::json;
use spanwire_plan::plan::ObjectKind;
use spanwire_plan::world::owns;
use spanwire_plan::{labels, names};
use spanwire_router::config::{CONFIG_FILE, Document};
use spanwire_router::credentials::{PROFILES_FILE, digest, revision};
use spanwire_router::entity::Entity;
use spanwire_router::report::{LinkReport, Report, report_key};

use super::Cluster;
use super::objects::insert;

impl Cluster {
    /// The Deployment controller, the kubelet and the adaptor: one ready pod a Deployment.
    pub(super) fn run_pods(&mut self) {
        let deployments: Vec<Deployment> = self.world.deployments.iter().cloned().collect();
        for deployment in deployments {
            let name = deployment.metadata.name.as_deref().unwrap();
            if !names::is_group(name) {
                continue;
            }
            let template = &deployment.spec.as_ref().unwrap().template;
            let hash = digest(serde_json::to_string(template).unwrap().as_bytes());
            let own = format!("{name}-{}", &hash[..8]);
            let is_there = self.world.pods.get(&own).is_some();
            let has_sources = self.world.secrets.get(names::CREDENTIALS).is_some()
                && self.world.config_maps.get(name).is_some();
            if is_there || !has_sources {
                continue;
            }
            let stale: Vec<String> = self
                .world
                .replica_sets
                .iter()
                .filter(|set| owns(&deployment.metadata, &set.metadata))
                .filter_map(|set| set.metadata.name.clone())
                .collect();
            for set in stale {
                self.delete(ObjectKind::ReplicaSet, &set);
            }
            let mut set = self.fresh(ObjectKind::ReplicaSet, &own);
            set.owner_references = Some(vec![names::owner(&deployment)]);
            let owner = json!({
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": own, "uid": set.uid,
            });
            insert(
                &mut self.world,
                ObjectKind::ReplicaSet,
                json!({"metadata": set}),
            );
            let mut metadata = serde_json::to_value(self.fresh(ObjectKind::Pod, &own)).unwrap();
            metadata["ownerReferences"] = json!([owner]);
            metadata["labels"] = json!(template.metadata.as_ref().unwrap().labels);
            let pod = json!({
                "metadata": metadata,
                "status": {
                    "phase": "Running",
                    "conditions": [{"type": "Ready", "status": "True"}],
                    "containerStatuses": [{
                        "name": "kube-adaptor", "image": "", "imageID": "", "ready": true,
                        "restartCount": 0, "state": {"running": {"startedAt": self.now.to_string()}},
                    }],
                },
            });
            insert(&mut self.world, ObjectKind::Pod, pod);
            self.adapt(&own);
        }
    }

    /// An adaptor reads its mount and reports; each wanted connector is up, each listener open.
    pub(super) fn adapt(&mut self, pod: &str) {
        let pod = self.world.pods.get(pod).unwrap();
        let group = pod.metadata.labels.as_ref().unwrap()[labels::GROUP].clone();
        let key = report_key(
            pod.metadata.name.as_deref().unwrap(),
            pod.metadata.uid.as_deref().unwrap(),
        );
        let text = |kind, name: &str, key: &str| {
            self.texts
                .get(&(kind, name.to_owned()))
                .and_then(|texts| texts.get(key).cloned())
        };
        let profiles = text(ObjectKind::Secret, names::CREDENTIALS, PROFILES_FILE);
        let config = text(ObjectKind::ConfigMap, &group, CONFIG_FILE);
        let (Some(profiles), Some(config)) = (profiles, config) else {
            return;
        };
        let entities = Document::parse(config.as_bytes()).unwrap().entities;
        let listeners = entities.iter().filter_map(|entity| match entity {
            Entity::Listener(listener) => Some((listener.name.clone(), listener.port)),
            _ => None,
        });
        let links = entities
            .iter()
            .filter(|entity| entity.type_name() == "connector");
        let up = LinkReport {
            up: true,
            ..Default::default()
        };
        let report = Report {
            revision: revision(profiles.as_bytes(), config.as_bytes()),
            settled: true,
            listeners: listeners.collect(),
            links: links
                .map(|link| (link.name().unwrap().to_owned(), up.clone()))
                .collect(),
            ..Report::default()
        };
        if let Some(mut facts) = self.world.config_maps.get(names::REPORT).cloned()
            && facts.reports.get(&key) != Some(&report)
        {
            facts.reports.insert(key, report);
            facts.metadata.resource_version = Some(self.tick());
            self.world.config_maps.insert(facts);
        }
    }
}
