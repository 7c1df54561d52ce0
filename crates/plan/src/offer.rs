//! What does a grant give to whoever redeems it, and if it gives nothing, why not?
//!
//! It is asked twice: by the grant's plan, which tells it in the status, and by the grant server, at each redemption and
//! of the grant as it is then. The answer is the same because it is given here.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value};
use spanwire_api::{AccessGrant, Endpoint};

use crate::env::Env;
use crate::kinds::Kind as _;
use crate::plan::StoredLink;
use crate::report::report;
use crate::site::{default_issuer, is_edge};
use crate::world::{World, controls, named};

pub use crate::controller::address as grant_server_address;

/// Endpoints that a remote site can link to; others are for clients inside.
const LINKABLE: [&str; 2] = ["inter-router", "edge"];

/// What a redemption depends on besides its grant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// Whether it is an edge site, which nobody can link to.
    pub edge: bool,
    /// Name of the Secret of the CA that signs, unless the grant names another.
    pub issuer: String,
    /// Where the site is reached, as its status publishes it.
    pub endpoints: Vec<Endpoint>,
}

/// How often a grant may be redeemed, and until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// How often in all.
    pub allowed: i64,
    /// How often it has been.
    pub made: i64,
    /// Until when; absent where the status does not say so.
    pub end: Option<Timestamp>,
}

/// Why a grant gives nothing, as far as that can be known before a credential is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Its status does not say until when it is valid.
    Endless,
    /// Its time was over at this moment.
    Expired(Timestamp),
    /// It has been redeemed as often as it allows.
    UsedUp(Allowance),
    /// The site is an edge site.
    EdgeSite,
    /// The site can be reached nowhere.
    NoEndpoint,
}

/// The grant of this name and uid, and the offer of its site; none also where the grant is being deleted, and where this
/// operator does not control the namespace.
pub fn granted<'a>(
    (name, uid): (&str, &str),
    world: &'a World,
    env: &Env<'_>,
) -> Option<(&'a AccessGrant, Option<Offer>)> {
    let grant = world.access_grants.get(name)?.fits()?;
    let metadata = &grant.metadata;
    let is_it = metadata.uid.as_deref() == Some(uid) && metadata.deletion_timestamp.is_none();
    (is_it && controls(world, env)).then(|| (grant, offer(world)))
}

/// The fields of its status by which a grant whose redemptions were just counted tells what is true then, so that the
/// pass that follows has nothing to write. `live` is the same grant before they were.
pub fn told(
    live: &AccessGrant,
    counted: &AccessGrant,
    world: &World,
    env: &Env<'_>,
) -> Map<String, Value> {
    let Some(status) = counted.plan(world, env).status else {
        return Map::new();
    };
    let live = serde_json::to_value(&live.status).unwrap_or_default();
    let generation = counted.metadata.generation.unwrap_or_default();
    match report(&live, generation, &status, &[], env.now) {
        Some(told) if told.code.is_none() => told.status,
        _ => Map::new(),
    }
}

/// The offer of the active site; none where there is no site, or where it is being deleted.
pub fn offer(world: &World) -> Option<Offer> {
    let site = world.site()?;
    if site.metadata.deletion_timestamp.is_some() {
        return None;
    }
    Some(Offer {
        edge: is_edge(site),
        issuer: default_issuer(site).to_owned(),
        endpoints: site
            .status
            .as_ref()
            .map(|status| status.endpoints.clone())
            .unwrap_or_default(),
    })
}

/// The Links that come of a token of this name: one for each group of routers.
pub fn links(name: &str, groups: Vec<Vec<Endpoint>>) -> Vec<StoredLink> {
    let is_one = groups.len() == 1;
    let link = |(endpoints, number): (Vec<Endpoint>, u32)| StoredLink {
        name: if is_one {
            name.to_owned()
        } else {
            format!("{name}-{number}")
        },
        endpoints,
    };
    groups.into_iter().zip(1..).map(link).collect()
}

/// Whether a remote site can link to this endpoint.
pub fn is_linkable(endpoint: &Endpoint) -> bool {
    LINKABLE.contains(&endpoint.name.as_str())
}

impl Offer {
    /// Name of the Secret of the CA that signs for a grant that asks for this one.
    pub fn issuer<'a>(&'a self, asked: Option<&'a str>) -> &'a str {
        named(asked).unwrap_or(&self.issuer)
    }

    /// The Links for a client that calls its token `name`: one for each group of routers.
    pub fn links(&self, name: &str) -> Result<Vec<StoredLink>, Refusal> {
        if self.edge {
            return Err(Refusal::EdgeSite);
        }
        let mut groups: BTreeMap<&str, Vec<Endpoint>> = BTreeMap::new();
        for endpoint in self.endpoints.iter().filter(|end| is_linkable(end)) {
            let group = groups.entry(&endpoint.group).or_default();
            group.push(endpoint.clone());
        }
        if groups.is_empty() {
            return Err(Refusal::NoEndpoint);
        }
        Ok(links(name, groups.into_values().collect()))
    }
}

impl Allowance {
    /// What this grant allows and what is left of it.
    pub fn of(grant: &AccessGrant) -> Self {
        let status = grant.status.as_ref();
        let allowed = grant.spec.redemptions_allowed;
        Self {
            // 0 and absent mean once (`facts/skupper-v2.md` §7.1).
            allowed: allowed.filter(|allowed| *allowed > 0).unwrap_or(1),
            made: status
                .and_then(|status| status.redemptions)
                .unwrap_or_default(),
            end: status
                .and_then(|status| status.expiration_time.as_ref())
                .and_then(|end| end.parse().ok()),
        }
    }

    /// The same after so many further redemptions.
    #[must_use]
    pub fn after(self, count: usize) -> Self {
        Self {
            made: self
                .made
                .saturating_add(i64::try_from(count).unwrap_or(i64::MAX)),
            ..self
        }
    }

    /// Why there is nothing left for a new claim, if so: in the order in which upstream's server looks.
    pub fn refusal(&self, now: Timestamp) -> Option<Refusal> {
        match self.end {
            None => Some(Refusal::Endless),
            Some(end) if now >= end => Some(Refusal::Expired(end)),
            Some(_) if self.made >= self.allowed => Some(Refusal::UsedUp(*self)),
            Some(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::env::Config;
    use crate::world::Objects;

    fn allowance(spec: Value, status: Value) -> Allowance {
        let mut grant = json!({"metadata": {"name": "g"}});
        grant["spec"] = spec;
        grant["status"] = status;
        Allowance::of(&serde_json::from_value(grant).unwrap())
    }

    fn at(time: &str) -> Timestamp {
        time.parse().unwrap()
    }

    fn endpoint(name: &str, group: &str) -> Endpoint {
        Endpoint {
            name: name.to_owned(),
            host: "east.example".to_owned(),
            port: "1".to_owned(),
            group: group.to_owned(),
        }
    }

    #[test]
    fn a_grant_allows_one_redemption_unless_it_says_more() {
        for once in [json!({}), json!({"redemptionsAllowed": 0})] {
            assert_eq!(allowance(once, json!({})).allowed, 1);
        }
        assert_eq!(
            allowance(json!({"redemptionsAllowed": 3}), json!({})).allowed,
            3
        );
    }

    #[test]
    fn what_is_over_is_told_before_what_is_used_up() {
        let end = at("2026-01-01T12:00:00Z");
        let status = json!({"expirationTime": end.to_string(), "redemptions": 1});
        let used_up = allowance(json!({}), status);
        let before = at("2026-01-01T11:59:59Z");
        assert_eq!(used_up.refusal(before), Some(Refusal::UsedUp(used_up)));
        assert_eq!(used_up.refusal(end), Some(Refusal::Expired(end)));
        let unused = Allowance { made: 0, ..used_up };
        assert_eq!(unused.refusal(before), None);
        assert_eq!(unused.refusal(end), Some(Refusal::Expired(end)));
        for odd in [json!({}), json!({"expirationTime": "soon"})] {
            let endless = allowance(json!({}), odd);
            assert_eq!(endless.refusal(before), Some(Refusal::Endless));
        }
    }

    #[test]
    fn a_grant_is_known_by_its_uid_and_only_where_this_operator_is_in_charge() {
        let world = |config_maps: Value| -> World {
            serde_json::from_value(json!({
                "namespace": "east",
                "accessGrants": [{"metadata": {"name": "g", "uid": "grant-uid"}}],
                "sites": [{"metadata": {"name": "s", "uid": "site-uid"}}],
                "configMaps": config_maps,
            }))
            .unwrap()
        };
        let config = Config::default();
        let env = Env {
            now: Timestamp::UNIX_EPOCH,
            nonce: 0,
            config: &config,
        };
        let ours = world(json!([]));
        let (grant, offered) = granted(("g", "grant-uid"), &ours, &env).unwrap();
        assert_eq!(grant.metadata.name.as_deref(), Some("g"));
        assert_eq!(offered, offer(&ours));
        assert!(offered.is_some());
        assert_eq!(granted(("g", "another"), &ours, &env), None);
        let mut leaving = world(json!([]));
        let site = json!({"metadata": {
            "name": "s", "uid": "site-uid", "deletionTimestamp": "2026-01-01T00:00:00Z",
        }});
        leaving.sites = serde_json::from_value(json!([site])).unwrap();
        assert_eq!(offer(&leaving), None);
        let siteless = World {
            sites: Objects::default(),
            ..ours
        };
        let (_, offered) = granted(("g", "grant-uid"), &siteless, &env).unwrap();
        assert_eq!(offered, None);
        let mut dying = world(json!([]));
        let grant = json!({"metadata": {
            "name": "g", "uid": "grant-uid", "deletionTimestamp": "2026-01-01T00:00:00Z",
        }});
        dying.access_grants = serde_json::from_value(json!([grant])).unwrap();
        assert_eq!(granted(("g", "grant-uid"), &dying, &env), None);
        let theirs = json!([{"metadata": {"name": "skupper"}, "controller": "elsewhere/another"}]);
        assert_eq!(granted(("g", "grant-uid"), &world(theirs), &env), None);
    }

    #[test]
    fn links_are_numbered_only_where_there_are_several() {
        let mut offer = Offer {
            endpoints: vec![endpoint("edge", "a"), endpoint("normal", "c")],
            ..Offer::default()
        };
        let names = |offer: &Offer| -> Vec<String> {
            let links = offer.links("t").unwrap();
            links.into_iter().map(|link| link.name).collect()
        };
        assert_eq!(names(&offer), ["t"]);
        offer.endpoints.push(endpoint("inter-router", "b"));
        offer.endpoints.push(endpoint("inter-router", "a"));
        assert_eq!(names(&offer), ["t-1", "t-2"]);
        assert_eq!(offer.links("t").unwrap()[0].endpoints.len(), 2);
    }

    #[test]
    fn nobody_links_to_an_edge_site_or_to_where_nothing_is() {
        let mut offer = Offer {
            endpoints: vec![endpoint("normal", "a")],
            ..Offer::default()
        };
        assert_eq!(offer.links("t"), Err(Refusal::NoEndpoint));
        offer.endpoints.push(endpoint("edge", "a"));
        offer.edge = true;
        assert_eq!(offer.links("t"), Err(Refusal::EdgeSite));
    }

    #[test]
    fn the_grant_names_the_issuer_or_else_the_site_does() {
        let offer = Offer {
            issuer: "site-ca".to_owned(),
            ..Offer::default()
        };
        assert_eq!(offer.issuer(None), "site-ca");
        assert_eq!(offer.issuer(Some("")), "site-ca");
        assert_eq!(offer.issuer(Some("other")), "other");
    }
}
