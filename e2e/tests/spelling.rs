//! Is an object understood that says less than it could, or says it in older words?

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use spanwire_e2e::kubectl::condition;
use spanwire_e2e::rest;
use spanwire_e2e::scene::{self, ours, text};

#[test]
fn an_object_without_a_spec_is_served_or_told_what_it_lacks() -> Result<()> {
    scene::play("spelling-none", |scene| {
        let bare = |kind: &str, name: &str| {
            let mut object = ours(kind, name, &Value::Null);
            object.as_object_mut().map(|object| object.remove("spec"));
            object
        };
        scene.apply([bare("Site", "west"), bare("AccessGrant", "grant")])?;
        scene.holds("site", "west", "Ready")?;
        scene.holds("accessgrant", "grant", "Processed")?;
        scene.refused("accessgrant", "grant", "Resolved", "NoEndpoint")?;

        // What the schema lets pass, a condition names; each costs itself only.
        for (kind, of) in [
            ("Link", "Configured"),
            ("RouterAccess", "Configured"),
            ("SecuredAccess", "Configured"),
            ("Certificate", "Ready"),
            ("AccessToken", "Redeemed"),
        ] {
            let object = bare(kind, "bare").to_string();
            let args = ["create", "--filename=-", "--namespace", &scene.namespace];
            let answer = scene.kubectl.attempt(&args, Some(&object))?;
            if !answer.status.success() {
                ensure!(answer.stderr.contains("spec"), "{kind}: {}", answer.stderr);
                continue;
            }
            let told = scene.wait("a verdict", scene::WITHIN, (kind, "bare"), |object| {
                condition(object, of).is_some_and(|condition| condition["status"] == "False")
            })?;
            let told = condition(&told, of).unwrap_or(&Value::Null);
            ensure!(
                text(&told["message"]).contains("spec") || text(&told["message"]).contains("token"),
                "{kind} is told nothing of use: {told}"
            );
        }
        rest::reached(scene.bed, &[&scene.namespace])?;
        scene.holds("site", "west", "Ready").map(drop)
    })
}

#[test]
fn older_words_mean_the_same_and_newer_ones_win() -> Result<()> {
    scene::play("spelling-old", |scene| {
        let old = |kind: &str, name: &str, spec: Value| {
            let mut object = ours(kind, name, &spec);
            object["apiVersion"] = "skupper.io/v1alpha1".into();
            object
        };
        scene.apply([
            old("Site", "west", json!({"routerMode": "edge"})),
            old(
                "Link",
                "east",
                json!({
                    "endpoints": [{"name": "edge", "host": "east.example", "port": "45671"}],
                    "tlsCredentials": "east",
                    "noClientAuth": true,
                }),
            ),
            old(
                "Certificate",
                "east",
                json!({"ca": "skupper-site-ca", "subject": "east", "client": true}),
            ),
        ])?;
        scene.holds("site", "west", "Ready")?;
        let link = scene.holds("link", "east", "Configured")?;
        let told = text(&condition(&link, "Configured").unwrap_or(&Value::Null)["message"]);
        ensure!(told.contains("noClientAuth is ignored"), "{told}");
        let mode = |mode: &'static str| {
            move |config: &Value| text(&config["data"]["bootstrap.json"]).contains(mode)
        };
        let config = ("configmap", "skupper-router");
        scene.wait("an edge router", scene::WITHIN, config, mode("\"edge\""))?;

        scene.merge("site", "west", &json!({"spec": {"edge": false}}))?;
        scene.wait(
            "another router",
            scene::WITHIN,
            config,
            mode("\"interior\""),
        )?;
        let told = |site: &Value| {
            condition(site, "Configured").is_some_and(|configured| {
                text(&configured["message"]).contains("spec.edge and spec.routerMode differ")
            })
        };
        scene.wait("the remark", scene::WITHIN, ("site", "west"), told)?;

        let access = json!({
            "accessType": "local",
            "roles": [{"name": "normal", "port": 5680}],
            "generateTlsCredentials": true,
            "tlsCredentials": "clients",
            "options": {"a": "1", "b": "2"},
            "settings": {"a": "3"},
        });
        scene.apply([old("RouterAccess", "clients-in", access)])?;
        let access = scene.holds("routeraccess", "clients-in", "Ready")?;
        let told = text(&condition(&access, "Configured").unwrap_or(&Value::Null)["message"]);
        ensure!(told.contains("settings win"), "{told}");
        let secured = scene.get("securedaccess", "clients-in")?;
        ensure!(
            secured["spec"]["settings"] == json!({"a": "3", "b": "2"}),
            "{}",
            secured["spec"]
        );
        Ok(())
    })
}
