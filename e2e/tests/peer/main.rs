//! Does a token end as it should at a grant server of upstream's kind and at one of ours, wherever its operator is killed?
//!
//! On a control plane of its own: an operator outside of it that redeems, another that grants, and a grant server that
//! does as upstream's (`e2e/src/grant_server.rs`); `upstream.rs` asks the same of upstream's own controller.

mod trap;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use spanwire_e2e::cluster::Cluster;
use spanwire_e2e::fault_proxy::FaultProxy;
use spanwire_e2e::grant_server::{GrantServer, Offer};
use spanwire_e2e::images::Profile;
use spanwire_e2e::kubectl::has_condition;
use spanwire_e2e::operator::Operator;
use spanwire_e2e::redeemer::Grant;
use spanwire_e2e::site::{Given, Site, token_for};
use spanwire_e2e::{bed, wait};

use trap::{Moment, Trap};

/// The namespace of a site that gives, and of one that takes.
const GIVES: &str = "east";
const TAKES: &str = "west";
const WITHIN: Duration = Duration::from_mins(1);
/// More writes than a redemption has.
const WRITES: usize = 20;

struct Stage {
    // Dropped first: they would complain about the rest.
    redeeming: Operator,
    granting: Operator,
    proxy: FaultProxy,
    cluster: Cluster,
    trap: Arc<Trap>,
    takes: Site,
}

impl Stage {
    fn set() -> Result<Stage> {
        let (cluster, programs) = bed::without_operator(Profile::Bed)?;
        let (kubectl, logs) = (cluster.kubectl(), cluster.dir().join("logs"));
        let granting = Operator::start_in(GIVES, &programs, &kubectl, &logs, &[])?;
        let trap = Arc::new(Trap::default());
        let deciding = trap.clone();
        let (proxy, kubeconfig) = cluster.divert_admin(move |asked| deciding.fate(asked))?;
        let redeeming = Operator::start(&programs, &kubeconfig, 0, &logs)?;
        let takes = Site::make(&kubectl, TAKES, &json!({}))?;
        Ok(Stage {
            redeeming,
            granting,
            proxy,
            cluster,
            trap,
            takes,
        })
    }

    /// Makes a token whose operator is killed at this write of its redemption, and started again. Says whether it came to
    /// that, and if so, whether the answer had come and was not stored.
    fn kill_at(&mut self, kill: &Kill, spec: &Value) -> Result<Option<bool>> {
        let before = self.proxy.held(None);
        self.trap.set(&kill.token, kill.write, kill.moment);
        self.takes.token(&kill.token, spec)?;
        let is_caught = wait::until("the write, or the end", WITHIN, || {
            if self.proxy.held(None) > before {
                return Ok(Some(true));
            }
            let token = self.takes.find("accesstoken", &kill.token)?;
            let is_over = token.is_some_and(|token| has_condition(&token, "Redeemed"));
            Ok((is_over && self.trap.caught().is_none()).then_some(false))
        })?;
        if !is_caught {
            return Ok(None);
        }
        self.redeeming.restart()?;
        let caught = self.trap.caught().context("what was caught")?;
        Ok(Some(
            caught.resource == "secrets" && kill.moment == Moment::Before,
        ))
    }
}

/// Where an operator is killed.
#[derive(Debug)]
struct Kill {
    token: String,
    write: usize,
    moment: Moment,
}

/// Calls `redeem` with each kill of a redemption, until it says that there was none: the redemption has no such write.
fn kills(prefix: &str, mut redeem: impl FnMut(&Kill) -> Result<bool>) -> Result<usize> {
    for write in 1..WRITES {
        for moment in [Moment::Before, Moment::After] {
            let token = format!("{prefix}-{write}-{moment:?}").to_lowercase();
            let kill = Kill {
                token,
                write,
                moment,
            };
            if !redeem(&kill).with_context(|| format!("{kill:?}"))? {
                // The Secret, the Link and the status.
                ensure!(write > 3, "a redemption has but {} writes", write - 1);
                return Ok((write - 1) * 2);
            }
        }
    }
    anyhow::bail!("a redemption has no end of writes")
}

#[test]
fn a_redemption_is_counted_once_wherever_its_operator_is_killed() -> Result<()> {
    let mut stage = Stage::set()?;
    let server = GrantServer::start()?;
    is_taken(&stage, &server)?;
    is_refused(&stage, &server)?;
    let kills = killed_at_upstreams(&mut stage, &server)? + killed_at_ours(&mut stage)?;
    println!("{kills} kills");
    let Stage {
        redeeming,
        granting,
        cluster,
        ..
    } = stage;
    drop((redeeming, granting));
    cluster.end()
}

/// A good answer is taken, with a Link for each group of routers.
fn is_taken(stage: &Stage, server: &GrantServer) -> Result<()> {
    let of_two = Offer {
        groups: vec!["skupper-router", "skupper-router-2"],
        ..Offer::default()
    };
    for (token, offer, cost) in [("one", Offer::default(), None), ("two", of_two, Some(3))] {
        let given = server.given(&offer);
        let mut spec = server.offer(token, offer);
        if let Some(cost) = cost {
            spec["linkCost"] = json!(cost);
        }
        stage.takes.token(token, &spec)?;
        stage.takes.redeemed(token)?;
        stage.takes.holds(token, &given, cost)?;
        ensure!(server.requests(token) == 1, "{token} was asked for again");
        let redeemer = server.redeemer(token).context("a redemption")?;
        ensure!(redeemer == (token.to_owned(), stage.takes.uid.clone()));
    }
    Ok(())
}

/// A refusal is final: the server is not asked again.
fn is_refused(stage: &Stage, server: &GrantServer) -> Result<()> {
    let expired = Offer {
        is_expired: true,
        ..Offer::default()
    };
    let used_up = Offer {
        redemptions_allowed: 0,
        ..Offer::default()
    };
    let cases = [
        ("wrong-code", Offer::default(), "CodeRefused"),
        ("expired", expired, "Expired"),
        ("used-up", used_up, "UsedUp"),
    ];
    for (token, offer, _) in &cases {
        let mut spec = server.offer(token, offer.clone());
        if *token == "wrong-code" {
            spec["code"] = json!("a guess");
        }
        stage.takes.token(token, &spec)?;
    }
    for (token, _, reason) in &cases {
        stage.takes.refused(token, reason)?;
        stage.takes.holds_nothing(token)?;
        ensure!(server.requests(token) == 1, "{token} was asked for again");
        ensure!(server.redemptions(token) == 0, "{token} was counted");
    }
    Ok(())
}

/// A server of upstream's kind is asked once; only where its answer is lost with the operator, twice.
fn killed_at_upstreams(stage: &mut Stage, server: &GrantServer) -> Result<usize> {
    let given = server.given(&Offer::default());
    let mut asked = Vec::new();
    let kills = kills("theirs", |kill| {
        let spec = server.offer(&kill.token, Offer::default());
        let Some(is_lost) = stage.kill_at(kill, &spec)? else {
            return Ok(false);
        };
        ends(stage, &kill.token, &given, is_lost)?;
        asked.push((kill.token.clone(), 1 + usize::from(is_lost)));
        Ok(true)
    })?;
    let lost = asked.iter().filter(|(_, times)| *times == 2).count();
    ensure!(lost == 1, "answers were lost at {lost} kills");

    let token = "theirs-answered";
    server.hold(true);
    let spec = server.offer(token, Offer::default());
    stage.takes.token(token, &spec)?;
    wait::until("the redemption", WITHIN, || {
        Ok((server.redemptions(token) == 1).then_some(()))
    })?;
    stage.redeeming.restart()?;
    server.hold(false);
    ends(stage, token, &given, true)?;
    asked.push((token.to_owned(), 2));
    // At last, as each restart is another chance to ask.
    for (token, times) in asked {
        let requests = server.requests(&token);
        ensure!(requests == times, "{token} was asked for {requests} times");
        ensure!(server.redemptions(&token) == 1, "{token}");
    }
    Ok(kills + 1)
}

/// A lost redemption cannot be had again at a server that knows no nonce, and the token says so.
fn ends(stage: &Stage, token: &str, given: &Given, is_lost: bool) -> Result<()> {
    if is_lost {
        stage.takes.refused(token, "UsedUp")?;
        return stage.takes.holds_nothing(token);
    }
    stage.takes.redeemed(token)?;
    stage.takes.holds(token, given, None)
}

/// A server of ours may be asked again, counts once, and gives again what was lost.
fn killed_at_ours(stage: &mut Stage) -> Result<usize> {
    let kubectl = stage.cluster.kubectl();
    let east = Site::make(&kubectl, GIVES, &json!({"linkAccess": "default"}))?;
    let given = east.given()?;
    let mut granted = Vec::new();
    let kills = kills("ours", |kill| {
        let grant = east.grant(&kill.token, &json!({"redemptionsAllowed": 2}))?;
        let spec = token_for(&grant, stage.granting.grants().1)?;
        if stage.kill_at(kill, &spec)?.is_none() {
            return Ok(false);
        }
        ends(stage, &kill.token, &given, false)?;
        granted.push(Grant::of(&grant)?);
        Ok(true)
    })?;
    for grant in granted {
        let counted = grant.redemptions(&kubectl)?;
        ensure!(counted == 1, "{}: {counted} counted", grant.name);
    }
    Ok(kills)
}
