//! What does a mistake cost? A condition with a reason and a helpful sentence, nobody else anything, and no more once
//! it is repaired. (What the schema refuses is in `contract.rs`.)

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use spanwire_e2e::kubectl::condition;
use spanwire_e2e::rest;
use spanwire_e2e::scene::{self, Scene, ours, text};

#[test]
fn a_port_that_the_router_needs_is_refused() -> Result<()> {
    scene::play("bad-port", |scene| {
        let neighbours = settle_neighbours(scene)?;
        let roles =
            |port| json!([{"name": "inter-router", "port": 55680}, {"name": "edge", "port": port}]);
        scene.apply([access("bad", "local", &roles(9090))])?;
        let told = scene.refused("routeraccess", "bad", "Configured", "PortReserved")?;
        ensure!(told.contains("\"edge\"") && told.contains("9090"), "{told}");
        // The role that makes sense is played.
        let service = ("service", "bad");
        scene.wait("the other role", scene::WITHIN, service, |service| {
            service["spec"]["ports"]
                .as_array()
                .is_some_and(|ports| ports.len() == 1 && ports[0]["port"] == 55680)
        })?;
        scene.merge(
            "routeraccess",
            "bad",
            &json!({"spec": {"roles": roles(45680)}}),
        )?;
        scene.holds("routeraccess", "bad", "Ready")?;

        // A port of the neighbour is refused to the newcomer.
        scene.merge(
            "routeraccess",
            "bad",
            &json!({"spec": {"roles": roles(55690)}}),
        )?;
        let told = scene.refused("routeraccess", "bad", "Configured", "DuplicatePort")?;
        ensure!(told.contains("\"healthy\""), "{told}");
        neighbours.are_as_before(scene)
    })
}

#[test]
fn an_access_type_that_is_not_there_is_refused() -> Result<()> {
    scene::play("bad-access-type", |scene| {
        let neighbours = settle_neighbours(scene)?;
        let roles = json!([{"name": "normal", "port": 5680}]);
        scene.apply([access("bad", "route", &roles)])?;
        let reason = "UnsupportedAccessType";
        let told = scene.refused("routeraccess", "bad", "Configured", reason)?;
        ensure!(
            told.contains("\"route\"") && told.contains("nodeport"),
            "{told}"
        );
        scene.merge(
            "routeraccess",
            "bad",
            &json!({"spec": {"accessType": "local"}}),
        )?;
        scene.holds("routeraccess", "bad", "Ready")?;
        neighbours.are_as_before(scene)
    })
}

#[test]
fn a_link_without_credentials_waits_for_them() -> Result<()> {
    scene::play("bad-link", |scene| {
        let neighbours = settle_neighbours(scene)?;
        scene.apply([link("bad", "bad.example", "to-come")])?;
        let told = scene.refused("link", "bad", "Configured", "CredentialsNotFound")?;
        ensure!(told.contains("\"to-come\""), "{told}");

        scene.apply([secret("to-come", &json!({"tls.crt": "anVuaw=="}))])?;
        let lacks = |link: &Value| text(&link["status"]["message"]).contains("has no ");
        scene.wait(
            "the missing file to be named",
            scene::WITHIN,
            ("link", "bad"),
            lacks,
        )?;
        let junk = json!({"ca.crt": "anVuaw==", "tls.crt": "anVuaw==", "tls.key": "anVuaw=="});
        scene.apply([secret("to-come", &junk)])?;
        let told = scene.refused("link", "bad", "Configured", "CredentialsInvalid")?;
        ensure!(told.contains("\"to-come\""), "{told}");

        let good = scene.get("secret", "healthy-client")?["data"].clone();
        scene.apply([secret("to-come", &good)])?;
        scene.holds("link", "bad", "Configured")?;

        // Junk over what was good: told, and the good version stays in force.
        let credentials = |scene: &Scene| -> Result<Value> {
            Ok(scene.get("secret", "skupper-router-credentials")?["data"].clone())
        };
        let before = credentials(scene)?;
        scene.apply([secret("to-come", &junk)])?;
        let told = scene.refused("link", "bad", "Configured", "CredentialsInvalid")?;
        ensure!(told.contains("stays in force"), "{told}");
        scene.delete("secret", "to-come")?;
        let told = scene.refused("link", "bad", "Configured", "CredentialsNotFound")?;
        ensure!(told.contains("stays in force"), "{told}");
        ensure!(
            credentials(scene)? == before,
            "the good version was forgotten"
        );

        scene.apply([secret("to-come", &good)])?;
        scene.holds("link", "bad", "Configured")?;
        neighbours.are_as_before(scene)
    })
}

#[test]
fn two_links_to_one_place_are_one_too_many() -> Result<()> {
    scene::play("bad-twice", |scene| {
        let neighbours = settle_neighbours(scene)?;
        scene.apply([link("bad", "healthy.example", "healthy-client")])?;
        let told = scene.refused("link", "bad", "Configured", "DuplicateTarget")?;
        ensure!(told.contains("Link \"healthy\""), "{told}");
        let elsewhere =
            json!([{"name": "inter-router", "host": "elsewhere.example", "port": "55671"}]);
        scene.merge("link", "bad", &json!({"spec": {"endpoints": elsewhere}}))?;
        scene.holds("link", "bad", "Configured")?;

        let only_edge = json!([{"name": "edge", "host": "elsewhere.example", "port": "55671"}]);
        scene.merge("link", "bad", &json!({"spec": {"endpoints": only_edge}}))?;
        let told = scene.refused("link", "bad", "Configured", "NoEndpoint")?;
        ensure!(told.contains("\"inter-router\""), "{told}");
        neighbours.are_as_before(scene)
    })
}

#[test]
fn what_a_stranger_has_is_left_to_him() -> Result<()> {
    scene::play("bad-stranger", |scene| {
        let neighbours = settle_neighbours(scene)?;
        let object =
            |kind: &str| json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "taken"}});
        let mut service = object("Service");
        service["spec"] = json!({"ports": [{"port": 1}]});
        scene.apply([secret("taken-server", &json!({})), service])?;
        let roles = json!([{"name": "normal", "port": 5680}]);
        scene.apply([access("taken", "local", &roles)])?;

        for (kind, name, of) in [
            ("certificate", "taken-server", "Ready"),
            ("securedaccess", "taken", "Configured"),
        ] {
            let told = scene.refused(kind, name, of, "NameTaken")?;
            let named = format!("\"{name}\"");
            ensure!(told.contains(&named) && told.contains("delete"), "{told}");
        }
        untouched(scene, "secret", "taken-server")?;
        untouched(scene, "service", "taken")?;
        scene.refused("routeraccess", "taken", "Configured", "NameTaken")?;

        scene.delete("service", "taken")?;
        scene.holds("securedaccess", "taken", "Configured")?;
        scene.delete("secret", "taken-server")?;
        scene.holds("certificate", "taken-server", "Ready")?;
        scene.holds("routeraccess", "taken", "Ready")?;
        neighbours.are_as_before(scene)
    })
}

#[test]
fn a_site_whose_names_are_taken_waits_for_them() -> Result<()> {
    scene::play("bad-site-names", |scene| {
        // In the order of the site's stages: each is told when it is what stands in the way.
        let strangers = [
            ("Secret", "skupper-router-credentials"),
            ("ConfigMap", "skupper-router"),
            ("ServiceAccount", "skupper-router"),
            ("Deployment", "skupper-router"),
        ];
        let object = |(kind, name)| match kind {
            "Deployment" => deployment(name),
            _ => json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}}),
        };
        scene.apply(strangers.map(object))?;
        scene.apply([ours("Site", "west", &json!({}))])?;
        for (kind, name) in strangers {
            let taken = format!("{kind} \"{name}\" exists");
            let is_told = |site: &Value| {
                condition(site, "Configured").is_some_and(|condition| {
                    condition["reason"] == "NameTaken"
                        && text(&condition["message"]).contains(&taken)
                })
            };
            let what = format!("the {kind} to be named");
            scene.wait(&what, scene::WITHIN, ("site", "west"), is_told)?;
            untouched(scene, kind, name)?;
            scene.delete(kind, name)?;
        }
        scene.holds("site", "west", "Ready").map(drop)
    })
}

#[test]
fn a_second_site_waits_for_the_first_to_go() -> Result<()> {
    scene::play("bad-two-sites", |scene| {
        let neighbours = settle_neighbours(scene)?;
        scene.apply([ours("Site", "another", &json!({"linkAccess": "local"}))])?;
        let told = scene.refused("site", "another", "Configured", "AnotherSiteActive")?;
        ensure!(
            told == "An active site already exists in the namespace (west)",
            "{told}"
        );
        rest::reached(scene.bed, &[&scene.namespace])?;
        ensure!(scene.find("routeraccess", "skupper-router")?.is_none());
        neighbours.are_as_before(scene)?;

        scene.delete("site", "west")?;
        scene.holds("site", "another", "Ready")?;
        scene.holds("routeraccess", "skupper-router", "Ready")?;
        let config = scene.get("configmap", "skupper-router")?;
        ensure!(
            config["metadata"]["ownerReferences"][0]["name"] == "another",
            "{}",
            config["metadata"]
        );
        Ok(())
    })
}

#[test]
fn tokens_that_cannot_be_redeemed_say_why() -> Result<()> {
    scene::play("bad-token-west", |west| {
        scene::play("bad-token-east", |east| tokens(west, east))
    })
}

fn tokens(west: &Scene, east: &Scene) -> Result<()> {
    let grant = |name: &str, window: &str| {
        ours(
            "AccessGrant",
            name,
            &json!({"redemptionsAllowed": 1, "expirationWindow": window}),
        )
    };
    west.apply([
        ours("Site", "west", &json!({"linkAccess": "default"})),
        grant("used", "1h"),
        grant("free", "1h"),
        grant("other", "1h"),
        grant("short", "2s"),
    ])?;
    east.apply([ours("Site", "east", &json!({}))])?;
    let used = token_of(west, "used")?;
    east.apply([ours("AccessToken", "first", &used)])?;
    east.holds("accesstoken", "first", "Redeemed")?;
    east.holds("link", "first", "Operational")?;
    let neighbours = Neighbours::of(east, &[("site", "east"), ("link", "first")])?;

    let (free, other, short) = (
        token_of(west, "free")?,
        token_of(west, "other")?,
        west.refused("accessgrant", "short", "Resolved", "Expired")
            .and_then(|_| status_of(west, "short"))?,
    );
    let with = |token: &Value, field: &str, value: &Value| {
        let mut token = token.clone();
        token[field] = value.clone();
        token
    };
    let stranger = west.get("secret", "skupper-site-ca")?["data"]["tls.crt"].clone();
    east.apply([
        ours(
            "AccessToken",
            "wrong-code",
            &with(&free, "code", &json!("not-the-code")),
        ),
        ours("AccessToken", "second", &used),
        ours("AccessToken", "late", &short),
        ours(
            "AccessToken",
            "wrong-ca",
            &with(&other, "ca", &json!(decoded(&stranger)?)),
        ),
    ])?;
    for (name, reason, hint) in [
        ("wrong-code", "CodeRefused", "copy status.code"),
        ("second", "UsedUp", "new token"),
        ("late", "Expired", "new token"),
        ("wrong-ca", "PeerUntrusted", "CA"),
    ] {
        let told = east.refused("accesstoken", name, "Redeemed", reason)?;
        ensure!(told.contains(hint), "{name}: {told}");
        ensure!(east.find("secret", name)?.is_none(), "{name} has a Secret");
        ensure!(east.find("link", name)?.is_none(), "{name} has a Link");
    }
    // Refused is not counted.
    let free_grant = west.get("accessgrant", "free")?;
    ensure!(
        free_grant["status"]["redemptions"].as_u64().unwrap_or(0) == 0,
        "{}",
        free_grant["status"]
    );
    // Final for this spec: nobody asks again.
    rest::reached(east.bed, &[&east.namespace])?;

    east.merge(
        "accesstoken",
        "wrong-code",
        &json!({"spec": {"code": free["code"]}}),
    )?;
    east.merge(
        "accesstoken",
        "wrong-ca",
        &json!({"spec": {"ca": other["ca"]}}),
    )?;
    west.merge(
        "accessgrant",
        "used",
        &json!({"spec": {"redemptionsAllowed": 2}}),
    )?;
    west.holds("accessgrant", "used", "Ready")?;
    east.merge("accesstoken", "second", &json!({"spec": {"linkCost": 2}}))?;
    west.apply([grant("anew", "1h")])?;
    east.merge(
        "accesstoken",
        "late",
        &json!({"spec": token_of(west, "anew")?}),
    )?;
    for name in ["wrong-code", "wrong-ca", "second", "late"] {
        east.holds("accesstoken", name, "Redeemed")?;
    }
    neighbours.are_as_before(east)
}

#[test]
fn a_grant_of_a_site_that_takes_no_links_says_so() -> Result<()> {
    scene::play("bad-grant", |scene| {
        scene.apply([ours("AccessGrant", "grant", &json!({}))])?;
        scene.refused("accessgrant", "grant", "Processed", "NoActiveSite")?;
        scene.apply([ours("Site", "west", &json!({"edge": true}))])?;
        scene.refused("accessgrant", "grant", "Processed", "EdgeSite")?;
        scene.merge("site", "west", &json!({"spec": {"edge": false}}))?;
        scene.refused("accessgrant", "grant", "Resolved", "NoEndpoint")?;
        scene.merge("site", "west", &json!({"spec": {"linkAccess": "default"}}))?;
        scene.holds("accessgrant", "grant", "Ready").map(drop)
    })
}

/// The token that belongs to a grant, once it can be redeemed.
fn token_of(scene: &Scene, grant: &str) -> Result<Value> {
    scene.holds("accessgrant", grant, "Ready")?;
    status_of(scene, grant)
}

fn status_of(scene: &Scene, grant: &str) -> Result<Value> {
    let status = &scene.get("accessgrant", grant)?["status"];
    Ok(json!({"url": status["url"], "code": status["code"], "ca": status["ca"]}))
}

fn access(name: &str, access_type: &str, roles: &Value) -> Value {
    let spec = json!({
        "accessType": access_type,
        "roles": roles,
        "generateTlsCredentials": true,
        "tlsCredentials": format!("{name}-server"),
    });
    ours("RouterAccess", name, &spec)
}

fn link(name: &str, host: &str, credentials: &str) -> Value {
    let spec = json!({
        "endpoints": [{"name": "inter-router", "host": host, "port": "55671"}],
        "tlsCredentials": credentials,
    });
    ours("Link", name, &spec)
}

/// A Deployment that runs nothing.
fn deployment(name: &str) -> Value {
    let labels = json!({"app": name});
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "a", "image": "a"}]},
            },
        },
    })
}

/// A Secret whose values are in base64 already.
fn secret(name: &str, data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data})
}

/// Fails if the operator has written an object that the test applied.
fn untouched(scene: &Scene, kind: &str, name: &str) -> Result<()> {
    rest::reached(scene.bed, &[&scene.namespace])?;
    let object = scene.run(&["get", kind, name, "--output=json", "--show-managed-fields"])?;
    let object: Value = serde_json::from_str(&object)?;
    // Where only a name was applied there is none at all.
    let managers = object["metadata"]["managedFields"].as_array();
    let mut managers = managers.into_iter().flatten();
    ensure!(
        managers.all(|entry| entry["manager"] != "spanwire"),
        "{kind} {name} was written: {object}"
    );
    Ok(())
}

/// A Site with an access and a link, which have nothing to do with what others do wrong.
fn settle_neighbours(scene: &Scene) -> Result<Neighbours> {
    let client = json!({"ca": "skupper-site-ca", "subject": "healthy", "client": true});
    let roles = json!([{"name": "inter-router", "port": 55690}]);
    scene.apply([
        ours("Site", "west", &json!({})),
        ours("Certificate", "healthy-client", &client),
        // A router gives each name once, be it to a connector or to a set of credentials.
        access("healthy", "local", &roles),
        link("healthy", "healthy.example", "healthy-client"),
    ])?;
    scene.holds("site", "west", "Ready")?;
    scene.holds("routeraccess", "healthy", "Ready")?;
    scene.holds("link", "healthy", "Configured")?;
    rest::reached(scene.bed, &[&scene.namespace])?;
    let neighbours = [
        ("site", "west"),
        ("routeraccess", "healthy"),
        ("link", "healthy"),
    ];
    Neighbours::of(scene, &neighbours)
}

/// Some objects, and what was true of them.
struct Neighbours(Vec<(&'static str, &'static str, Vec<Value>)>);

impl Neighbours {
    fn of(scene: &Scene, objects: &[(&'static str, &'static str)]) -> Result<Self> {
        let told = objects
            .iter()
            .map(|(kind, name)| Ok((*kind, *name, truths(scene, kind, name)?)));
        told.collect::<Result<_>>().map(Self)
    }

    /// Nothing that was true of them was untrue for a moment, or the time of the transition would be another.
    fn are_as_before(&self, scene: &Scene) -> Result<()> {
        for (kind, name, before) in &self.0 {
            let now = truths(scene, kind, name)?;
            ensure!(
                now == *before,
                "{kind} {name}, which did nothing wrong: was {before:?}, is {now:?}"
            );
        }
        Ok(())
    }
}

/// The conditions of an object that hold, and since when.
fn truths(scene: &Scene, kind: &str, name: &str) -> Result<Vec<Value>> {
    let object = scene.get(kind, name)?;
    let conditions = object["status"]["conditions"]
        .as_array()
        .context("conditions")?;
    let truths: Vec<Value> = conditions
        .iter()
        .filter(|condition| condition["status"] == "True")
        .map(|condition| json!([condition["type"], condition["lastTransitionTime"]]))
        .collect();
    ensure!(!truths.is_empty(), "nothing is true of {kind} {name}");
    Ok(truths)
}

fn decoded(base64: &Value) -> Result<String> {
    let bytes = STANDARD.decode(text(base64))?;
    String::from_utf8(bytes).context("a text")
}
