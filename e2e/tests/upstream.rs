//! Do we and upstream's own controller understand each other, as who grants and as who redeems?
//!
//! On a control plane of its own with both beside each other, where `SPANWIRE_SKUPPER_CONTROLLER` names a binary of
//! upstream's (`e2e/src/upstream.rs`).

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use spanwire_e2e::images::Profile;
use spanwire_e2e::kubectl::text;
use spanwire_e2e::operator::Operator;
use spanwire_e2e::redeemer::{self, Grant, Redeemer};
use spanwire_e2e::site::{Site, token_for};
use spanwire_e2e::{bed, scene, skip, upstream, wait};

/// The namespace of upstream's controller and its site, and that of our site.
const THEIRS: &str = "north";
const OURS: &str = "south";

#[test]
fn tokens_are_redeemed_at_upstreams_controller_and_by_it() -> Result<()> {
    let Some(program) = upstream::named()? else {
        let reason = format!("{} names no controller of upstream's", upstream::VARIABLE);
        skip::skip(
            "tokens_are_redeemed_at_upstreams_controller_and_by_it",
            &reason,
        );
        return Ok(());
    };
    play(&program)
}

fn play(program: &Path) -> Result<()> {
    let (cluster, programs) = bed::without_operator(Profile::Bed)?;
    let (kubectl, logs) = (cluster.kubectl(), cluster.dir().join("logs"));
    let controller = upstream::start(THEIRS, program, &kubectl, &logs)?;
    let operator = Operator::start(&programs, &cluster.kubeconfig(), 0, &logs)?;
    let ours = Site::make(&kubectl, OURS, &json!({"linkAccess": "default"}))?;
    // One whose routers are two, so that two Links come.
    let theirs = json!({"linkAccess": "default", "ha": true});
    let theirs = Site::make(&kubectl, THEIRS, &theirs)?;

    redeems(&ours, (&theirs, &controller))?;
    redeems(&theirs, (&ours, &operator))?;
    is_refused(&ours, (&theirs, &controller))?;
    drop((operator, controller));
    cluster.end()
}

/// A site redeems what another grants, at a server that is reached where its process listens.
fn redeems(takes: &Site, (granting, server): (&Site, &Operator)) -> Result<()> {
    let given = granting.given()?;
    let grant = granting.grant("good", &json!({"redemptionsAllowed": 2}))?;
    takes.token("good", &token_for(&grant, server.grants().1)?)?;
    takes.redeemed("good")?;
    takes.holds("good", &given, None)?;
    ensure!(redemptions(granting, "good")? == 1, "not counted once");
    Ok(())
}

/// What upstream refuses is refused for good, with the reason that it has, and never asked for again.
fn is_refused(takes: &Site, (granting, server): (&Site, &Operator)) -> Result<()> {
    let port = server.grants().1;
    let grant = granting.grant("refused", &json!({}))?;
    let spec = token_for(&grant, port)?;
    let wrong = json!({"url": spec["url"], "code": "a guess", "ca": spec["ca"]});
    takes.token("wrong-code", &wrong)?;
    takes.refused("wrong-code", "CodeRefused")?;
    takes.token("first", &spec)?;
    takes.redeemed("first")?;
    takes.token("used-up", &spec)?;
    takes.refused("used-up", "UsedUp")?;

    let expired = granting.grant("expired", &json!({"expirationWindow": "1s"}))?;
    expires(&expired, server)?;
    let guesses = upstream::requests(server, &expired)?;
    takes.token("expired", &token_for(&expired, port)?)?;
    takes.refused("expired", "Expired")?;

    for token in ["wrong-code", "used-up", "expired"] {
        takes.holds_nothing(token)?;
    }
    for (grant, requests, count) in [(&grant, 3, 1), (&expired, guesses + 1, 0)] {
        ensure!(upstream::requests(server, grant)? == requests, "{grant}");
        let name = text(&grant["metadata"]["name"]);
        ensure!(redemptions(granting, name)? == count, "{grant}");
    }
    Ok(())
}

/// Guesses until a grant has expired, which costs nothing.
fn expires(grant: &Value, server: &Operator) -> Result<()> {
    let mut wrong = Grant::of(grant)?;
    "a guess".clone_into(&mut wrong.code);
    let guesser = Redeemer {
        source: redeemer::source(0),
        subject: "nobody".to_owned(),
        nonce: None,
    };
    wait::until("the grant to expire", scene::WITHIN, || {
        let said = guesser.redeem(server.grants(), &wrong)?;
        Ok((said.status == 404).then_some(()))
    })
}

fn redemptions(site: &Site, grant: &str) -> Result<u64> {
    let grant: Value = site.find("accessgrant", grant)?.context("the grant")?;
    Ok(grant["status"]["redemptions"].as_u64().unwrap_or_default())
}
