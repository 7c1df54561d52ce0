//! What does a router pod look like?
//!
//! Two containers beside each other, a router and its adaptor. One projected volume holds configuration and
//! credentials, both required: so the kubelet holds every container until both exist (`design.md` §3). Only a change
//! of what the router reads at its start, or of this file, ever rolls the pods.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{
    Deployment, DeploymentSpec, DeploymentStrategy, RollingUpdateDeployment,
};
use k8s_openapi::api::core::v1::{
    Affinity, Capabilities, ConfigMapProjection, Container, ContainerPort, DownwardAPIProjection,
    DownwardAPIVolumeFile, EmptyDirVolumeSource, EnvVar, EnvVarSource, HTTPGetAction, KeyToPath,
    ObjectFieldSelector, PodAffinityTerm, PodAntiAffinity, PodSecurityContext, PodSpec,
    PodTemplateSpec, Probe, ProjectedVolumeSource, SeccompProfile, SecretProjection,
    SecurityContext, ServiceAccountTokenProjection, Volume, VolumeMount, VolumeProjection,
    WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::env::Env;
use crate::plan::{Child, ObjectKind};
use crate::settle::child;
use crate::site::shape::Shape;
use crate::world::World;
use crate::{labels, names};

/// Container of the router process.
const ROUTER: &str = "router";
/// Container of the adaptor: upstream's name, by which its command line finds the version.
pub(crate) const ADAPTOR: &str = "kube-adaptor";

/// Volume of configuration and credentials, as the API has them.
const CONFIG: (&str, &str) = ("config", "/etc/skupper-router-config");
/// Volume of the credentials that the router reads: memory, written by the adaptor.
const CERTIFICATES: (&str, &str) = ("certs", "/etc/skupper-router-certs");
/// Volume for what the router image's start script writes.
const SCRATCH: (&str, &str) = ("tmp", "/tmp");
/// Volume of the adaptor's own access to the API.
const TOKEN: (&str, &str) = ("token", "/var/run/secrets/kubernetes.io/serviceaccount");

/// Readable for all: the volumes belong to root, and the containers are not root.
const READABLE: i32 = 0o444;

/// Labels of router pods that upstream's Services and users select by.
pub(crate) fn router_labels() -> BTreeMap<String, String> {
    labels::map([
        (labels::NAME, names::ROUTER),
        (labels::PART_OF, labels::PART_OF_SKUPPER),
        (labels::APPLICATION, names::ROUTER),
        (labels::COMPONENT, labels::COMPONENT_ROUTER),
        (labels::SITE_TYPE, "site"),
    ])
}

/// The Deployment of a group. `bootstrap` is the digest of what its router reads at the start.
pub(crate) fn deployment(
    group: &str,
    bootstrap: &str,
    shape: &Shape<'_>,
    world: &World,
    env: &Env<'_>,
) -> Child {
    let mut pod_labels = router_labels();
    pod_labels.insert(labels::GROUP.to_owned(), group.to_owned());
    let mut annotations = labels::map([
        ("prometheus.io/port", "9090"),
        ("prometheus.io/scrape", "true"),
        (labels::BOOTSTRAP, bootstrap),
    ]);
    if let Some(account) = younger_account(group, shape, world) {
        annotations.insert(labels::ACCOUNT.to_owned(), account.to_owned());
    }
    let template = PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(pod_labels),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        }),
        spec: Some(pod(group, shape, env)),
    };
    let deployment = Deployment {
        metadata: ObjectMeta {
            labels: Some(router_labels()),
            ..shape.metadata(group)
        },
        spec: Some(DeploymentSpec {
            replicas: Some(1),
            // Immutable, and upstream's.
            selector: LabelSelector {
                match_labels: Some(labels::map([(labels::COMPONENT, labels::COMPONENT_ROUTER)])),
                ..LabelSelector::default()
            },
            // The new router is there before the old one goes: a gap of 2 s instead of 8 (`facts/order.md` n).
            strategy: Some(DeploymentStrategy {
                type_: Some("RollingUpdate".to_owned()),
                rolling_update: Some(RollingUpdateDeployment {
                    max_surge: Some(IntOrString::Int(1)),
                    max_unavailable: Some(IntOrString::Int(0)),
                }),
            }),
            template,
            ..DeploymentSpec::default()
        }),
        status: None,
    };
    child(ObjectKind::Deployment, &deployment)
}

/// The uid of the pods' account if it is younger than their Deployment. The token of a pod is good for the account that it
/// was started with, not for another one of that name: the pods are made anew, or they could never report again.
fn younger_account<'w>(group: &str, shape: &Shape<'_>, world: &'w World) -> Option<&'w str> {
    let account = &world.service_accounts.get(shape.service_account)?.metadata;
    let deployment = &world.deployments.get(group)?.metadata;
    let is_younger = account.creation_timestamp > deployment.creation_timestamp;
    account.uid.as_deref().filter(|_| is_younger)
}

fn pod(group: &str, shape: &Shape<'_>, env: &Env<'_>) -> PodSpec {
    PodSpec {
        service_account_name: Some(shape.service_account.to_owned()),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        termination_grace_period_seconds: Some(5),
        // Users are not set, so that platforms which assign them keep working; both images name the same one.
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            seccomp_profile: Some(SeccompProfile {
                type_: "RuntimeDefault".to_owned(),
                ..SeccompProfile::default()
            }),
            ..PodSecurityContext::default()
        }),
        // With one router too: so a second one that comes later does not roll the first.
        affinity: shape.spread.then(apart),
        containers: vec![router(shape, env), adaptor(group, shape, env)],
        volumes: Some(volumes(group)),
        ..PodSpec::default()
    }
}

fn router(shape: &Shape<'_>, env: &Env<'_>) -> Container {
    let port = |name: &str, container_port| ContainerPort {
        name: Some(name.to_owned()),
        container_port,
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    };
    Container {
        name: ROUTER.to_owned(),
        image: Some(env.config.router_image.clone()),
        image_pull_policy: Some(env.config.pull_policy.clone()),
        env: Some(vec![
            variable("QDROUTERD_CONF", &format!("{}/bootstrap.json", CONFIG.1)),
            variable("QDROUTERD_CONF_TYPE", "json"),
            variable("SKUPPER_SITE_ID", shape.uid),
        ]),
        ports: Some(vec![
            port("amqps", 5671),
            port("http", 9090),
            port("inter-router", 55671),
            port("edge", 45671),
        ]),
        readiness_probe: Some(probe("/healthz", 9090, 1)),
        liveness_probe: Some(Probe {
            initial_delay_seconds: Some(60),
            ..probe("/healthz", 9090, 10)
        }),
        security_context: Some(restricted()),
        volume_mounts: Some(vec![
            mount(CONFIG, Some(true)),
            mount(CERTIFICATES, Some(true)),
            mount(SCRATCH, None),
        ]),
        ..Container::default()
    }
}

fn adaptor(group: &str, shape: &Shape<'_>, env: &Env<'_>) -> Container {
    Container {
        name: ADAPTOR.to_owned(),
        image: Some(env.config.adaptor_image.clone()),
        image_pull_policy: Some(env.config.pull_policy.clone()),
        command: Some(vec!["/spanwire-adaptor".to_owned()]),
        env: Some(vec![
            field("SKUPPER_NAMESPACE", "metadata.namespace"),
            field("SPANWIRE_POD_NAME", "metadata.name"),
            field("SPANWIRE_POD_UID", "metadata.uid"),
            variable("SKUPPER_SITE_ID", shape.uid),
            variable("SKUPPER_SITE_NAME", shape.name),
            variable("SKUPPER_ROUTER_CONFIG", group),
        ]),
        readiness_probe: Some(probe("/healthz", 9191, 1)),
        liveness_probe: Some(Probe {
            initial_delay_seconds: Some(60),
            ..probe("/livez", 9191, 10)
        }),
        security_context: Some(restricted()),
        volume_mounts: Some(vec![
            mount(CONFIG, Some(true)),
            mount(CERTIFICATES, None),
            mount(TOKEN, Some(true)),
        ]),
        ..Container::default()
    }
}

fn volumes(group: &str) -> Vec<Volume> {
    let config = vec![
        VolumeProjection {
            secret: Some(SecretProjection {
                name: names::CREDENTIALS.to_owned(),
                ..SecretProjection::default()
            }),
            ..VolumeProjection::default()
        },
        VolumeProjection {
            config_map: Some(ConfigMapProjection {
                name: group.to_owned(),
                ..ConfigMapProjection::default()
            }),
            ..VolumeProjection::default()
        },
    ];
    let certificates = EmptyDirVolumeSource {
        medium: Some("Memory".to_owned()),
        size_limit: Some(Quantity("64Mi".to_owned())),
    };
    let scratch = EmptyDirVolumeSource {
        size_limit: Some(Quantity("64Mi".to_owned())),
        medium: None,
    };
    vec![
        projected(CONFIG.0, config),
        empty(CERTIFICATES.0, certificates),
        empty(SCRATCH.0, scratch),
        projected(TOKEN.0, token()),
    ]
}

/// What the kubelet would mount by itself, were it not for both containers.
fn token() -> Vec<VolumeProjection> {
    vec![
        VolumeProjection {
            service_account_token: Some(ServiceAccountTokenProjection {
                expiration_seconds: Some(3607),
                path: "token".to_owned(),
                ..ServiceAccountTokenProjection::default()
            }),
            ..VolumeProjection::default()
        },
        VolumeProjection {
            config_map: Some(ConfigMapProjection {
                name: "kube-root-ca.crt".to_owned(),
                items: Some(vec![KeyToPath {
                    key: "ca.crt".to_owned(),
                    path: "ca.crt".to_owned(),
                    ..KeyToPath::default()
                }]),
                ..ConfigMapProjection::default()
            }),
            ..VolumeProjection::default()
        },
        VolumeProjection {
            downward_api: Some(DownwardAPIProjection {
                items: Some(vec![DownwardAPIVolumeFile {
                    path: "namespace".to_owned(),
                    field_ref: Some(selector("metadata.namespace")),
                    ..DownwardAPIVolumeFile::default()
                }]),
            }),
            ..VolumeProjection::default()
        },
    ]
}

fn projected(name: &str, sources: Vec<VolumeProjection>) -> Volume {
    Volume {
        name: name.to_owned(),
        projected: Some(ProjectedVolumeSource {
            default_mode: Some(READABLE),
            sources: Some(sources),
        }),
        ..Volume::default()
    }
}

fn empty(name: &str, source: EmptyDirVolumeSource) -> Volume {
    Volume {
        name: name.to_owned(),
        empty_dir: Some(source),
        ..Volume::default()
    }
}

fn mount((name, path): (&str, &str), read_only: Option<bool>) -> VolumeMount {
    VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only,
        ..VolumeMount::default()
    }
}

fn variable(name: &str, value: &str) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value: Some(value.to_owned()),
        value_from: None,
    }
}

fn field(name: &str, path: &str) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value_from: Some(EnvVarSource {
            field_ref: Some(selector(path)),
            ..EnvVarSource::default()
        }),
        value: None,
    }
}

fn selector(path: &str) -> ObjectFieldSelector {
    ObjectFieldSelector {
        field_path: path.to_owned(),
        ..ObjectFieldSelector::default()
    }
}

fn probe(path: &str, port: i32, period: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::Int(port),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period),
        ..Probe::default()
    }
}

fn restricted() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities {
            drop: Some(vec!["ALL".to_owned()]),
            ..Capabilities::default()
        }),
        read_only_root_filesystem: Some(true),
        run_as_non_root: Some(true),
        ..SecurityContext::default()
    }
}

fn apart() -> Affinity {
    Affinity {
        pod_anti_affinity: Some(PodAntiAffinity {
            preferred_during_scheduling_ignored_during_execution: Some(vec![
                WeightedPodAffinityTerm {
                    weight: 100,
                    pod_affinity_term: PodAffinityTerm {
                        topology_key: "kubernetes.io/hostname".to_owned(),
                        label_selector: Some(LabelSelector {
                            match_labels: Some(labels::map([
                                (labels::APPLICATION, names::ROUTER),
                                (labels::SITE_TYPE, "site"),
                            ])),
                            ..LabelSelector::default()
                        }),
                        ..PodAffinityTerm::default()
                    },
                },
            ]),
            ..PodAntiAffinity::default()
        }),
        ..Affinity::default()
    }
}
