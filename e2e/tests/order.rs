//! Do credentials come before the configuration that names them, and do routers run from their first start on?
//!
//! Every stored revision is judged when a test passes ([`spanwire_e2e::history`]).

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use spanwire_e2e::audit::AuditLog;
use spanwire_e2e::bed::Bed;
use spanwire_e2e::history;
use spanwire_e2e::kubectl::has_condition;
use spanwire_e2e::namespace::Namespaces;
use spanwire_e2e::rest;
use spanwire_e2e::scenario::{FAULTLESS, Scenario};
use spanwire_e2e::scene::{self, Scene, ours, text};
use spanwire_e2e::tally::{self, Tally};
use spanwire_e2e::wait;

/// How often two sites are made from nothing.
fn rounds() -> usize {
    if scene::is_full() { 20 } else { 3 }
}

#[test]
fn router_never_restarts_at_start() -> Result<()> {
    let bed = Bed::shared()?;
    for round in 0..rounds() {
        let prefix = format!("order-{round}");
        let scenario = Scenario::new(bed, "two-sites", &prefix);
        let namespaces = Namespaces::make(bed, &scenario.namespaces())?;
        scenario.links()?;
        let tally = scenario.tally()?;
        ensure!(tally == FAULTLESS, "round {round}: {tally:?}");
        scenario.ends()?;
        namespaces.passed()?;
    }
    Ok(())
}

/// Whatever is changed, one thing after the other and all at once, while the Site lives.
#[test]
fn config_names_only_stored_credentials() -> Result<()> {
    scene::play("order-changes", |scene| {
        scene.apply([ours("Site", "west", &json!({"linkAccess": "default"}))])?;
        scene.holds("site", "west", "Ready")?;
        scene.apply([credential("mine"), credential("yours")])?;

        let changes = changes();
        for change in &changes {
            apply(scene, change)?;
            is_settled(scene)?;
        }
        for change in &changes {
            apply(scene, change)?;
        }
        is_settled(scene)?;
        let namespaces = [&scene.namespace];
        let seen = history::is_in_order(&scene.bed.audit(), AuditLog::START, &namespaces)?;
        ensure!(seen > changes.len(), "{seen} configurations were stored");
        let tally = Tally::take(&scene.kubectl, &[&scene.namespace])?;
        ensure!(tally.router_exits == 0, "{tally:?}");
        ensure!(tally.container_restarts == 0, "{tally:?}");
        Ok(())
    })
}

#[test]
fn the_two_routers_of_a_site_find_each_other() -> Result<()> {
    scene::play("order-pair", |scene| {
        scene.apply([site(&json!({"ha": true, "linkAccess": "default"}))])?;
        is_settled(scene)?;
        let mut told = Vec::new();
        let met = wait::until("the routers to meet", scene::WITHIN, || {
            let reports = tally::reports(&scene.kubectl, &scene.namespace)?;
            let links = reports.values().flat_map(|report| report.links.clone());
            told = links.collect();
            let is_met = reports.len() == 2 && told.iter().any(|(_, link)| link.up);
            Ok(is_met.then_some(()))
        });
        met.with_context(|| format!("{told:?}"))?;
        let tally = Tally::take(&scene.kubectl, &[&scene.namespace])?;
        ensure!(tally == FAULTLESS, "{tally:?}");
        Ok(())
    })
}

/// Where a site has been leaves no trace in where it is.
#[test]
fn a_site_that_was_toggled_is_as_one_that_never_was() -> Result<()> {
    scene::play("order-fresh", |fresh| {
        scene::play("order-toggled", |toggled| {
            for scene in [fresh, toggled] {
                scene.apply([site(&json!({"linkAccess": "default"}))])?;
                scene.holds("site", "west", "Ready")?;
            }
            is_settled(toggled)?;
            let issued = certificates(toggled)?;
            for spec in [
                json!({"ha": true, "edge": false}),
                json!({"ha": false, "edge": true}),
                json!({"ha": true, "edge": false}),
                json!({"ha": false, "edge": false}),
            ] {
                toggled.merge("site", "west", &json!({"spec": spec}))?;
                is_settled(toggled)?;
            }
            toggled.merge("site", "west", &json!({"spec": {"ha": null, "edge": null}}))?;
            is_settled(toggled)?;
            is_settled(fresh)?;

            ensure!(
                picture(toggled)? == picture(fresh)?,
                "toggled: {:#?}\nfresh: {:#?}",
                picture(toggled)?,
                picture(fresh)?
            );
            let kept = certificates(toggled)?;
            for name in [
                "skupper-site-ca",
                "skupper-local-ca",
                "skupper-local-server",
            ] {
                ensure!(kept[name] == issued[name], "{name} was issued again");
            }
            Ok(())
        })
    })
}

enum Change {
    Apply(Value),
    Merge(&'static str, &'static str, Value),
    Delete(&'static str, &'static str),
}

fn changes() -> Vec<Change> {
    let link = |credentials: &str, port: &str| {
        let endpoint = |name: &str| json!({"name": name, "host": "10.96.255.254", "port": port});
        let endpoints = [endpoint("inter-router"), endpoint("edge")];
        let spec = json!({"tlsCredentials": credentials, "endpoints": endpoints});
        Change::Apply(ours("Link", "out", &spec))
    };
    let access = |credentials: &str| {
        let spec = json!({
            "accessType": "local",
            "generateTlsCredentials": true,
            "tlsCredentials": credentials,
            "roles": [{"name": "inter-router", "port": 55680}],
        });
        Change::Apply(ours("RouterAccess", "more", &spec))
    };
    let site = |spec| Change::Merge("site", "west", json!({ "spec": spec }));
    vec![
        link("mine", "55671"),
        access("first"),
        link("yours", "55671"),
        access("second"),
        site(json!({"ha": true})),
        access("third"),
        link("mine", "45671"),
        site(json!({"ha": false, "linkAccess": "none"})),
        site(json!({"edge": true})),
        link("yours", "45671"),
        site(json!({"edge": false, "linkAccess": "default"})),
        Change::Delete("routeraccess", "more"),
        Change::Delete("link", "out"),
    ]
}

fn apply(scene: &Scene, change: &Change) -> Result<()> {
    match change {
        Change::Apply(object) => scene.apply([object.clone()]),
        Change::Merge(kind, name, patch) => scene.merge(kind, name, patch),
        Change::Delete(kind, name) => scene.delete(kind, name),
    }
}

/// A client's credential, issued by the site's own CA.
fn credential(name: &str) -> Value {
    let spec = json!({"ca": "skupper-site-ca", "subject": name, "client": true});
    ours("Certificate", name, &spec)
}

fn site(spec: &Value) -> Value {
    ours("Site", "west", spec)
}

/// The Site is told of as it is now, it runs, and nothing moves any more.
fn is_settled(scene: &Scene) -> Result<()> {
    let site = ("site", "west");
    scene.wait(
        "the Site to be ready as it is",
        scene::WITHIN,
        site,
        |site| {
            let generation = &site["metadata"]["generation"];
            let conditions = site["status"]["conditions"].as_array();
            has_condition(site, "Ready")
                && conditions.is_some_and(|conditions| {
                    conditions
                        .iter()
                        .all(|condition| condition["observedGeneration"] == *generation)
                })
        },
    )?;
    rest::reached(scene.bed, &[&scene.namespace]).map(drop)
}

/// Secret → its certificate.
fn certificates(scene: &Scene) -> Result<BTreeMap<String, String>> {
    let secrets = scene
        .kubectl
        .items(&["secrets", "--namespace", &scene.namespace])?;
    Ok(secrets
        .iter()
        .map(|secret| {
            let name = text(&secret["metadata"]["name"]).to_owned();
            (name, text(&secret["data"]["tls.crt"]).to_owned())
        })
        .collect())
}

/// What there is and what it wants, without what tells one site from another of the same spec.
fn picture(scene: &Scene) -> Result<BTreeMap<String, Value>> {
    let kinds = "deployments,services,configmaps,secrets,serviceaccounts,roles,rolebindings,\
                 routeraccesses,securedaccesses,certificates";
    let site = scene.get("site", "west")?;
    let uid = text(&site["metadata"]["uid"]);
    let objects = scene
        .kubectl
        .items(&[kinds, "--namespace", &scene.namespace])?;
    let mut picture = BTreeMap::new();
    for object in objects {
        let metadata = &object["metadata"];
        let key = format!("{} {}", text(&object["kind"]), text(&metadata["name"]));
        let wanted = json!({
            "labels": metadata["labels"],
            "spec": spec(&object),
            "rules": object["rules"],
            "bootstrap": object["data"]["bootstrap.json"],
            "configuration": object["data"]["skrouterd.json"],
        });
        let wanted = wanted
            .to_string()
            .replace(uid, "<site>")
            .replace(&scene.namespace, "<namespace>");
        picture.insert(key, serde_json::from_str(&wanted).context("a picture")?);
    }
    Ok(picture)
}

/// The spec without what the API server allots, and without the digest of what is compared itself.
fn spec(object: &Value) -> Value {
    let mut spec = object["spec"].clone();
    if object["kind"] == "Deployment" {
        spec["template"]["metadata"]["annotations"]["internal.spanwire.io/bootstrap"].take();
    }
    if object["kind"] == "Service"
        && let Some(fields) = spec.as_object_mut()
    {
        fields.remove("clusterIP");
        fields.remove("clusterIPs");
        for port in fields["ports"].as_array_mut().into_iter().flatten() {
            port["nodePort"].take();
        }
    }
    spec
}
