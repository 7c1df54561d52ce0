//! Does what is settled stay so, and does what somebody broke come back?

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use spanwire_e2e::scene::{self, Scene, ours, text};
use spanwire_e2e::{rest, tally, wait, workspace};

/// For how long a settled world is watched.
const REST: Duration = Duration::from_secs(10);
/// How soon an owned field that somebody changed is as it was. It takes 0.2 s on a machine that does nothing else; what
/// the watch did not bring would be found after 5 s, and would fail here.
const RESTORED_WITHIN: Duration = Duration::from_secs(4);

/// What is made of the sample Site, its accesses and its Certificate, one of each kind.
const CHILDREN: [(&str, &str); 13] = [
    ("service", "skupper-router-local"),
    ("service", "west-peers"),
    ("serviceaccount", "skupper-router"),
    ("role", "skupper-router"),
    ("rolebinding", "skupper-router"),
    ("configmap", "skupper-router"),
    ("configmap", "skupper-router-report"),
    ("secret", "skupper-router-credentials"),
    ("secret", "collector-client"),
    ("deployment", "skupper-router"),
    ("routeraccess", "skupper-router"),
    ("securedaccess", "west-peers"),
    ("certificate", "skupper-site-server"),
];

#[test]
fn a_settled_world_stays_and_comes_back() -> Result<()> {
    scene::play("settled-samples", |scene| {
        for sample in [
            "site",
            "router_access",
            "secured_access",
            "certificate",
            "link",
            "access_grant",
            "access_token",
        ] {
            let file = workspace::root().join(format!("config/samples/{sample}.yaml"));
            scene.run(&["apply", "--filename", &file.to_string_lossy()])?;
        }
        give_addresses(scene)?;
        scene.holds("site", "west", "Ready")?;
        scene.holds("routeraccess", "west-peers", "Ready")?;
        scene.holds("securedaccess", "collector", "Ready")?;
        scene.holds("certificate", "collector-client", "Ready")?;
        scene.holds("accessgrant", "for-the-east", "Ready")?;
        routers_meet(scene)?;
        rests(scene)?;

        for (kind, name, patch) in damages() {
            damage_is_repaired(scene, kind, name, &patch)
                .with_context(|| format!("{kind} {name} after {patch}"))?;
        }
        routers_meet(scene)?;
        rests(scene)?;

        foreign_fields_stay(scene)?;
        routers_meet(scene)?;
        rests(scene)
    })
}

#[test]
fn the_first_apply_takes_over_what_the_post_wrote() -> Result<()> {
    scene::play("settled-managers", |scene| {
        scene.apply([
            ours("Site", "west", &json!({})),
            ours(
                "RouterAccess",
                "peers",
                &json!({
                    "accessType": "local",
                    "roles": [{"name": "inter-router", "port": 55672}, {"name": "edge", "port": 45672}],
                    "generateTlsCredentials": true,
                    "tlsCredentials": "peers",
                }),
            ),
        ])?;
        scene.holds("routeraccess", "peers", "Ready")?;
        damage_is_repaired(
            scene,
            "service",
            "peers",
            &json!({"spec": {"selector": {"skupper.io/group": "elsewhere"}}}),
        )?;

        let service = scene.run(&[
            "get",
            "service",
            "peers",
            "--output=json",
            "--show-managed-fields",
        ])?;
        let service: Value = serde_json::from_str(&service)?;
        let managers = service["metadata"]["managedFields"]
            .as_array()
            .context("managedFields")?;
        let operations: Vec<&Value> = managers
            .iter()
            .filter(|entry| entry["manager"] == "spanwire" && entry["subresource"].is_null())
            .map(|entry| &entry["operation"])
            .collect();
        ensure!(operations == ["Apply"], "{managers:?}");

        let less = json!([{"name": "inter-router", "port": 55672}]);
        scene.merge("routeraccess", "peers", &json!({"spec": {"roles": less}}))?;
        scene.wait(
            "the port of the role to go",
            scene::WITHIN,
            ("service", "peers"),
            |service| {
                let ports = service["spec"]["ports"].as_array();
                ports.is_some_and(|ports| ports.len() == 1 && ports[0]["name"] == "inter-router")
            },
        )?;
        rests(scene)
    })
}

fn rests(scene: &Scene) -> Result<()> {
    let namespaces = [scene.namespace.as_str()];
    rest::reached(scene.bed, &namespaces)?;
    rest::lasts(scene.bed, &namespaces, REST)
}

/// Waits until the two routers of the site are linked: a router takes its time before it dials again, and its report
/// that a link is up is news.
fn routers_meet(scene: &Scene) -> Result<()> {
    wait::until("the two routers to be linked", scene::WITHIN, || {
        let reports = tally::reports(&scene.kubectl, &scene.namespace)?;
        let links = reports
            .values()
            .filter_map(|report| report.links.get("skupper-router"));
        let is_up = links.into_iter().any(|link| link.up);
        Ok(is_up.then_some(()))
    })
}

/// Plays the load balancer that this cluster lacks.
fn give_addresses(scene: &Scene) -> Result<()> {
    let service = ("service", "collector");
    scene.wait("the Service", scene::WITHIN, service, |_| true)?;
    let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.7"}]}}});
    scene
        .run(&[
            "patch",
            "service",
            "collector",
            "--subresource=status",
            "--type=merge",
            "--patch",
            &status.to_string(),
        ])
        .map(drop)?;
    let access = ("securedaccess", "collector");
    let is_told = |access: &Value| access["status"]["endpoints"][0]["host"] == "192.0.2.7";
    scene
        .wait("the address to be told", scene::WITHIN, access, is_told)
        .map(drop)
}

/// Merge patches that each break something that is ours.
fn damages() -> Vec<(&'static str, &'static str, Value)> {
    let nonsense = "bm9uc2Vuc2U=";
    vec![
        (
            "securedaccess",
            "west-peers",
            json!({"spec": {"accessType": "local"}}),
        ),
        (
            "routeraccess",
            "skupper-router",
            json!({"spec": {"bindHost": "127.0.0.1"}}),
        ),
        (
            "service",
            "skupper-router-local",
            json!({"spec": {"selector": {"skupper.io/component": "elsewhere"}}}),
        ),
        (
            "service",
            "west-peers",
            json!({"spec": {"ports": [{"name": "edge", "port": 45672, "targetPort": 1}]}}),
        ),
        // Another number under the same name: neither list item can be beside the other.
        (
            "service",
            "skupper-router-local",
            json!({"spec": {"ports": [{"name": "amqps", "port": 5999}]}}),
        ),
        (
            "service",
            "skupper-router-local",
            json!({"metadata": {"labels": {"app.kubernetes.io/part-of": "another"}}}),
        ),
        (
            "serviceaccount",
            "skupper-router",
            json!({"automountServiceAccountToken": true}),
        ),
        (
            "role",
            "skupper-router",
            json!({"rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]}),
        ),
        ("rolebinding", "skupper-router", json!({"subjects": null})),
        (
            "configmap",
            "skupper-router",
            json!({"data": {"skrouterd.json": "[]"}}),
        ),
        (
            "configmap",
            "skupper-router",
            json!({"data": {"bootstrap.json": null}}),
        ),
        (
            "secret",
            "skupper-router-credentials",
            json!({"data": {"profiles.json": nonsense}}),
        ),
        (
            "secret",
            "skupper-router-credentials",
            json!({"data": {"a-key-of-nobody": nonsense}}),
        ),
        (
            "deployment",
            "skupper-router",
            json!({"spec": {"replicas": 0}}),
        ),
        (
            "deployment",
            "skupper-router",
            json!({"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 7}}}}),
        ),
        (
            "routeraccess",
            "skupper-router",
            json!({"spec": {"generateTlsCredentials": false}}),
        ),
        (
            "routeraccess",
            "skupper-router",
            json!({"spec": {"roles": [{"name": "edge", "port": 45999}]}}),
        ),
        (
            "securedaccess",
            "west-peers",
            json!({"spec": {"issuer": "skupper-local-ca"}}),
        ),
        (
            "certificate",
            "skupper-site-server",
            json!({"spec": {"subject": "somebody else"}}),
        ),
    ]
}

/// Applies a merge patch; soon everything that is wanted of the object is as it was.
fn damage_is_repaired(scene: &Scene, kind: &str, name: &str, patch: &Value) -> Result<()> {
    let before = wanted_of(scene.get(kind, name)?);
    let is_repaired = |object: &Value| wanted_of(object.clone()) == before;
    scene.is_prompt(name, RESTORED_WITHIN, || {
        scene.merge(kind, name, patch)?;
        scene
            .wait("the repair", scene::WITHIN, (kind, name), is_repaired)
            .map(drop)
            .with_context(|| {
                let now = scene.get(kind, name).map(wanted_of).unwrap_or_default();
                format!("was {before}\nis {now}")
            })
    })
}

/// What the operator says of an object: neither what the API server counts nor the status.
fn wanted_of(mut object: Value) -> Value {
    object["status"] = Value::Null;
    for counted in ["resourceVersion", "generation"] {
        object["metadata"][counted] = Value::Null;
    }
    let annotations = &mut object["metadata"]["annotations"];
    if annotations.is_object() {
        annotations["deployment.kubernetes.io/revision"] = Value::Null;
    }
    // The API server gives one, and another one after the port has been away.
    for port in object["spec"]["ports"].as_array_mut().into_iter().flatten() {
        port["nodePort"] = Value::Null;
    }
    object
}

/// What others add to our objects is theirs: it stays, and nothing is written for it.
fn foreign_fields_stay(scene: &Scene) -> Result<()> {
    let namespaces = [scene.namespace.as_str()];
    let mark = scene.bed.audit().mark()?;
    let theirs =
        json!({"annotations": {"example.com/note": "mine"}, "labels": {"example.com/team": "a"}});
    for (kind, name) in CHILDREN {
        scene.merge(kind, name, &json!({"metadata": theirs}))?;
    }
    let affinity = json!({"spec": {"sessionAffinity": "ClientIP"}});
    scene.merge("service", "west-peers", &affinity)?;
    let key = json!({"data": {"a-note": "mine"}});
    scene.merge("configmap", "skupper-router", &key)?;
    // Adds an annotation to the pod template, as a person would who wants new pods.
    scene.run(&["rollout", "restart", "deployment/skupper-router"])?;
    scene.run(&[
        "rollout",
        "status",
        "deployment/skupper-router",
        "--timeout=60s",
    ])?;
    rest::reached(scene.bed, &namespaces)?;

    for (kind, name) in CHILDREN {
        let object = scene.get(kind, name)?;
        let metadata = &object["metadata"];
        ensure!(
            metadata["annotations"]["example.com/note"] == "mine"
                && metadata["labels"]["example.com/team"] == "a",
            "{kind} {name} lost what was added: {metadata}"
        );
    }
    let service = scene.get("service", "west-peers")?;
    ensure!(service["spec"]["sessionAffinity"] == "ClientIP");
    let config = scene.get("configmap", "skupper-router")?;
    ensure!(config["data"]["a-note"] == "mine");
    let deployment = scene.get("deployment", "skupper-router")?;
    let template = &deployment["spec"]["template"]["metadata"]["annotations"];
    ensure!(!text(&template["kubectl.kubernetes.io/restartedAt"]).is_empty());

    // New pods are news, and are told in statuses and nudged; no child is written.
    let written = rest::writes(scene.bed, mark, &namespaces)?;
    let fought: Vec<String> = written
        .iter()
        .filter(|request| {
            let object = &request.object_ref;
            let is_child = CHILDREN.iter().any(|(kind, name)| {
                object.name == *name && object.resource.starts_with(kind.trim_end_matches('s'))
            });
            let is_report = object.name == "skupper-router-report";
            is_child && object.subresource.is_empty() && !is_report
        })
        .map(ToString::to_string)
        .collect();
    ensure!(
        fought.is_empty(),
        "fought over what is theirs:\n{}",
        fought.join("\n")
    );
    Ok(())
}
