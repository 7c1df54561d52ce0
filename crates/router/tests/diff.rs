//! Is `diff` a law? Generated routers and configurations of up to 200 entities, and a router as
//! strict as the real one.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests, helpers included"
)]

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Map, json};
use spanwire_router::diff::{Change, Live, Wanted, diff, is_managed, matches};
use spanwire_router::entity::{
    Connector, Entity, EntityId, EntityType, Listener, Role, SslProfile,
};
use std::collections::{BTreeMap, BTreeSet};

/// A router that dies of what the real one refuses, or would do wrongly.
#[derive(Clone, Debug)]
struct Router {
    live: Live,
}

impl Router {
    fn make(&mut self, change: &Change) {
        let id = change.id();
        let names: BTreeSet<&str> = self.live.iter().map(|(id, _)| id.name.as_str()).collect();
        assert!(is_managed(&id), "{id} is not ours");
        match change {
            Change::Create(entity) => {
                assert!(
                    !names.contains(id.name.as_str()),
                    "the name of {id} is taken"
                );
                if let Some(profile) = entity.ssl_profile() {
                    let profile = EntityId::new(EntityType::SslProfile, profile);
                    assert!(
                        self.live.get(&profile).is_some(),
                        "{id} names {profile}, which does not exist"
                    );
                }
            }
            Change::Update(_) => assert!(self.live.get(&id).is_some(), "{id} does not exist"),
            Change::Delete(id) => {
                assert!(self.live.get(id).is_some(), "{id} does not exist");
                let is_profile = id.entity_type == EntityType::SslProfile;
                assert!(!(is_profile && self.is_used(&id.name)), "{id} is in use");
            }
        }
        self.live.apply(change);
    }

    fn is_used(&self, profile: &str) -> bool {
        self.live
            .iter()
            .any(|(_, entity)| entity.ssl_profile() == Some(profile))
    }
}

/// Names are few, so that those of different types meet; some are nobody's to touch.
fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        20 => (0..150_u32).prop_map(|number| format!("n{number}")),
        1 => select(vec!["amqp", "@9090", "auto-mesh-0", "auto-mesh-1"]).prop_map(str::to_owned),
    ]
}

fn profile(name: String) -> impl Strategy<Value = Entity> {
    (0..3_u32, proptest::option::of(0..3_u64), any::<bool>()).prop_map(
        move |(version, ordinal, is_whole)| {
            let path = |file: &str| Some(format!("/certs/{name}/{version}/{file}"));
            Entity::SslProfile(SslProfile {
                name: name.clone(),
                ca_cert_file: path("ca.crt"),
                cert_file: path("tls.crt").filter(|_| is_whole),
                private_key_file: path("tls.key").filter(|_| is_whole),
                ordinal,
                oldest_valid_ordinal: ordinal.map(|ordinal| ordinal.saturating_sub(1)),
                ..SslProfile::default()
            })
        },
    )
}

fn connector(name: String) -> impl Strategy<Value = Entity> {
    let role = select(vec![Role::InterRouter, Role::Edge]);
    let cost = proptest::option::of(1..3_u32);
    (
        role,
        1..4_u16,
        cost,
        proptest::option::of(any::<bool>()),
        uses(),
    )
        .prop_map(move |(role, port, cost, verify_hostname, ssl_profile)| {
            let (name, host) = (name.clone(), "host".to_owned());
            let other = Map::new();
            Entity::Connector(Connector {
                name,
                role,
                host,
                port,
                cost,
                ssl_profile,
                verify_hostname,
                other,
            })
        })
}

fn listener(name: String) -> impl Strategy<Value = Entity> {
    (1..4_u16, proptest::option::of(any::<bool>()), uses()).prop_map(
        move |(port, authenticate_peer, ssl_profile)| {
            Entity::Listener(Listener {
                name: name.clone(),
                port,
                authenticate_peer,
                ssl_profile,
                ..Listener::default()
            })
        },
    )
}

/// The profile that an entity uses; it may well not exist.
fn uses() -> impl Strategy<Value = Option<String>> {
    proptest::option::weighted(0.7, name())
}

fn entity() -> impl Strategy<Value = Entity> {
    name().prop_flat_map(|name| {
        prop_oneof![
            profile(name.clone()),
            connector(name.clone()),
            listener(name)
        ]
    })
}

/// Entities with one name each.
fn entities() -> impl Strategy<Value = Vec<Entity>> {
    vec(entity(), 0..200).prop_map(|entities| {
        let by_name: BTreeMap<String, Entity> = entities
            .into_iter()
            .filter_map(|entity| Some((entity.name()?.to_owned(), entity)))
            .collect();
        by_name.into_values().collect()
    })
}

/// Entities of a router: nothing there names a profile that does not exist.
fn live() -> impl Strategy<Value = Live> {
    (entities(), vec(name(), 0..5))
        .prop_map(|(entities, doubted)| Live::new(consistent(entities)).doubting(doubted))
}

/// Drops whatever names a profile that does not exist.
fn consistent(entities: Vec<Entity>) -> Vec<Entity> {
    let profiles: BTreeSet<String> = entities
        .iter()
        .filter(|entity| entity.entity_type() == EntityType::SslProfile)
        .filter_map(|entity| entity.name().map(str::to_owned))
        .collect();
    let exists = |entity: &Entity| {
        entity
            .ssl_profile()
            .is_none_or(|name| profiles.contains(name))
    };
    entities.into_iter().filter(exists).collect()
}

fn wanted(entities: &[Entity]) -> Wanted<'_> {
    let profiles: Vec<SslProfile> = entities
        .iter()
        .filter_map(|entity| match entity {
            Entity::SslProfile(profile) => Some(profile.clone()),
            _ => None,
        })
        .collect();
    Wanted::new(entities, profiles)
}

/// Entities whose profiles all exist and are ours, under names that nobody else has in the router:
/// all can be had.
fn attainable(entities: Vec<Entity>, live: &Live) -> Vec<Entity> {
    let strangers: BTreeSet<&str> = live
        .iter()
        .filter(|(id, _)| !is_managed(id))
        .map(|(id, _)| id.name.as_str())
        .collect();
    let is_ours = |entity: &Entity| {
        let id = entity.id().unwrap();
        is_managed(&id) && !strangers.contains(id.name.as_str())
    };
    // Strangers keep using their profiles, and a profile in use stays: its name is not to be had
    // for something else.
    let kept: BTreeSet<&str> = live
        .iter()
        .filter(|(id, _)| !is_managed(id))
        .filter_map(|(_, entity)| entity.ssl_profile())
        .collect();
    let is_free = |entity: &Entity| {
        entity.entity_type() == EntityType::SslProfile || !kept.contains(entity.name().unwrap())
    };
    consistent(
        entities
            .into_iter()
            .filter(|entity| is_ours(entity) && is_free(entity))
            .collect(),
    )
}

fn assert_arrived(router: &Router, start: &Live, wanted: &Wanted<'_>) {
    for (id, entity) in wanted.iter() {
        let live = router.live.get(id);
        assert!(
            live.is_some_and(|live| matches(entity, live)),
            "{id} is {live:?}, not {entity:?}"
        );
    }
    for (id, entity) in router.live.iter() {
        let is_wanted = wanted.get(id).is_some();
        let is_used = id.entity_type == EntityType::SslProfile && router.is_used(&id.name);
        assert!(
            is_wanted || !is_managed(id) || is_used,
            "{id} is not wanted: {entity:?}"
        );
    }
    for (id, entity) in start.iter().filter(|(id, _)| !is_managed(id)) {
        assert_eq!(router.live.get(id), Some(entity), "{id} is not ours");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn applying_a_diff_yields_what_is_wanted_and_the_next_is_empty(
        live in live(),
        entities in entities(),
    ) {
        let entities = attainable(entities, &live);
        let wanted = wanted(&entities);
        let mut router = Router { live: live.clone() };
        for change in diff(&wanted, &live) {
            router.make(&change);
        }
        assert_arrived(&router, &live, &wanted);
        prop_assert_eq!(diff(&wanted, &router.live), []);
    }

    #[test]
    fn a_diff_cut_short_anywhere_leaves_a_valid_router_that_still_arrives(
        live in live(),
        entities in entities(),
        cuts in vec(any::<Index>(), 1..4),
    ) {
        let entities = attainable(entities, &live);
        let wanted = wanted(&entities);
        let mut router = Router { live: live.clone() };
        for cut in cuts {
            let changes = diff(&wanted, &router.live);
            for change in changes.iter().take(cut.index(changes.len() + 1)) {
                router.make(change);
            }
        }
        for change in diff(&wanted, &router.live) {
            router.make(&change);
        }
        assert_arrived(&router, &live, &wanted);
    }

    #[test]
    fn what_cannot_be_had_costs_nothing_else(live in live(), entities in entities()) {
        // Profiles that do not exist, names that are taken: no step may be refused, and a second
        // diff is empty.
        let all = wanted(&entities);
        let mut router = Router { live: live.clone() };
        for change in diff(&all, &live) {
            router.make(&change);
        }
        prop_assert_eq!(diff(&all, &router.live), []);
        let attainable = attainable(entities.clone(), &live);
        for (id, entity) in wanted(&attainable).iter() {
            // A user that waits for its profile keeps the one that it has, whose name is then not
            // free.
            let is_blocked = router.live.iter().any(|(other, _)| other.name == id.name && other != id);
            let live = router.live.get(id);
            prop_assert!(is_blocked || live.is_some_and(|live| matches(entity, live)), "{id}: {live:?}");
        }
    }

    #[test]
    fn what_is_held_is_not_touched(
        live in live(),
        entities in entities(),
        picks in vec(any::<Index>(), 0..20),
    ) {
        let all = wanted(&entities);
        let known: Vec<EntityId> =
            all.iter().map(|(id, _)| id.clone()).chain(live.iter().map(|(id, _)| id.clone())).collect();
        prop_assume!(!known.is_empty());
        let held: Vec<EntityId> = picks.iter().map(|pick| pick.get(&known).clone()).collect();
        let all = all.holding(held.clone());
        let mut router = Router { live: live.clone() };
        for change in diff(&all, &live) {
            router.make(&change);
        }
        for id in &held {
            prop_assert_eq!(router.live.get(id), live.get(id));
        }
        prop_assert_eq!(diff(&all, &router.live), []);
    }

    #[test]
    fn a_router_that_has_what_is_wanted_is_left_alone(entities in entities()) {
        let entities = attainable(entities, &Live::default());
        prop_assert_eq!(diff(&wanted(&entities), &Live::new(entities.clone())), []);
    }
}

fn inter_router(name: &str, profile: &str, port: u16) -> Connector {
    Connector {
        name: name.to_owned(),
        role: Role::InterRouter,
        host: "example.com".to_owned(),
        port,
        ssl_profile: Some(profile.to_owned()),
        ..Connector::default()
    }
}

fn files(name: &str, version: &str) -> SslProfile {
    SslProfile {
        name: name.to_owned(),
        ca_cert_file: Some(format!("/certs/{name}/{version}/ca.crt")),
        cert_file: Some(format!("/certs/{name}/{version}/tls.crt")),
        private_key_file: Some(format!("/certs/{name}/{version}/tls.key")),
        ..SslProfile::default()
    }
}

fn steps(wanted: &Wanted<'_>, live: &Live) -> Vec<String> {
    let step = |change: &Change| {
        let verb = match change {
            Change::Create(_) => "create",
            Change::Update(_) => "update",
            Change::Delete(_) => "delete",
        };
        format!("{verb} {}", change.id())
    };
    diff(wanted, live).iter().map(step).collect()
}

#[test]
fn a_rotation_is_one_update() {
    let entities = vec![Entity::Connector(inter_router(
        "west",
        "west-profile",
        55671,
    ))];
    let wanted = Wanted::new(&entities, [files("west-profile", "2")]);
    let live = Live::new([
        Entity::SslProfile(files("west-profile", "1")),
        Entity::Connector(inter_router("west", "west-profile", 55671)),
    ]);
    assert_eq!(
        diff(&wanted, &live),
        [Change::Update(files("west-profile", "2"))]
    );
}

#[test]
fn a_profile_that_is_doubted_is_sent_again_once() {
    let entities = vec![Entity::Connector(inter_router("west", "p", 1))];
    let wanted = Wanted::new(&entities, [files("p", "1")]);
    let mut live = Live::new([
        Entity::SslProfile(files("p", "1")),
        Entity::Connector(inter_router("west", "p", 1)),
    ])
    .doubting(["p".to_owned()]);
    let changes = diff(&wanted, &live);
    assert_eq!(changes, [Change::Update(files("p", "1"))]);
    live.apply(&changes[0]);
    assert_eq!(diff(&wanted, &live), []);
}

#[test]
fn a_profile_comes_before_its_user_and_goes_after_it() {
    let entities = vec![Entity::Connector(inter_router("west", "p", 1))];
    let wanted = Wanted::new(&entities, [files("p", "1")]);
    let nothing = Wanted::default();
    let mut live = Live::default();
    assert_eq!(
        steps(&wanted, &live),
        ["create sslProfile/p", "create connector/west"]
    );
    for change in diff(&wanted, &live) {
        live.apply(&change);
    }
    assert_eq!(
        steps(&nothing, &live),
        ["delete connector/west", "delete sslProfile/p"]
    );
}

#[test]
fn an_entity_that_names_a_missing_profile_waits_and_what_it_has_stays() {
    let entities = vec![Entity::Connector(inter_router("west", "new", 1))];
    let wanted = Wanted::new(&entities, []);
    let live = Live::new([
        Entity::SslProfile(files("old", "1")),
        Entity::Connector(inter_router("west", "old", 1)),
    ]);
    assert_eq!(diff(&wanted, &live), []);
    assert_eq!(diff(&wanted, &Live::default()), []);
}

#[test]
fn a_profile_of_the_router_stays_while_something_wants_it() {
    let entities = vec![Entity::Connector(inter_router("west", "p", 1))];
    let wanted = Wanted::new(&entities, []);
    let live = Live::new([Entity::SslProfile(files("p", "1"))]);
    assert_eq!(steps(&wanted, &live), ["create connector/west"]);
}

#[test]
fn listeners_that_swap_ports_both_go_before_one_comes_back() {
    let listener = |name: &str, port| {
        Entity::Listener(Listener {
            name: name.to_owned(),
            port,
            ..Listener::default()
        })
    };
    let entities = vec![listener("a", 1), listener("b", 2)];
    let wanted = Wanted::new(&entities, []);
    let live = Live::new([listener("a", 2), listener("b", 1)]);
    assert_eq!(
        steps(&wanted, &live),
        [
            "delete listener/a",
            "delete listener/b",
            "create listener/a",
            "create listener/b"
        ]
    );
}

#[test]
fn a_name_can_move_from_one_type_to_another() {
    let entities = vec![Entity::Connector(inter_router("x", "a", 1))];
    let wanted = Wanted::new(&entities, [files("a", "1")]);
    let live = Live::new([
        Entity::SslProfile(files("x", "1")),
        Entity::Connector(inter_router("a", "x", 1)),
    ]);
    assert_eq!(
        steps(&wanted, &live),
        [
            "delete connector/a",
            "delete sslProfile/x",
            "create sslProfile/a",
            "create connector/x"
        ]
    );
}

#[test]
fn what_the_router_fills_in_makes_no_difference() {
    let wanted = Entity::Connector(inter_router("west", "p", 55671));
    // As a real router answers, nulls included.
    let answered = json!({
        "name": "west", "identity": "connector/example.com:55671:west", "type": "io.skupper.router.connector",
        "host": "example.com", "port": "55671", "role": "inter-router", "cost": 1, "sslProfile": "p",
        "proxyProfile": null, "saslMechanisms": null, "linkCapacity": 250, "verifyHostname": true,
        "idleTimeoutSeconds": 16, "connectionStatus": "SUCCESS", "connectionMsg": "[C1] Connection Opened"
    });
    let live =
        Entity::from_attributes(EntityType::Connector, answered.as_object().unwrap().clone())
            .unwrap();
    assert!(matches(&wanted, &live));

    let wanted = Entity::Listener(Listener {
        name: "a".to_owned(),
        port: 5671,
        authenticate_peer: Some(true),
        ..Listener::default()
    });
    let answered = json!({
        "name": "a", "host": "", "port": "5671", "role": "normal", "cost": "1", "sslProfile": "",
        "authenticatePeer": "yes", "http": false, "healthz": true, "metrics": true, "websockets": true
    });
    let live = Entity::from_attributes(EntityType::Listener, answered.as_object().unwrap().clone())
        .unwrap();
    assert!(matches(&wanted, &live));
}

#[test]
fn what_is_wanted_and_differs_makes_a_difference() {
    let live = Entity::Connector(inter_router("west", "p", 1));
    let differs = |change: fn(&mut Connector)| {
        let mut wanted = inter_router("west", "p", 1);
        change(&mut wanted);
        !matches(&Entity::Connector(wanted), &live)
    };
    assert!(differs(|wanted| wanted.cost = Some(2)));
    assert!(differs(|wanted| wanted.port = 2));
    assert!(differs(|wanted| wanted.verify_hostname = Some(false)));
    assert!(differs(|wanted| wanted.ssl_profile = None));
    assert!(differs(|wanted| drop(
        wanted.other.insert("linkCapacity".to_owned(), json!(10))
    )));
    assert!(!differs(|wanted| wanted.cost = Some(1)));
    assert!(!differs(|wanted| wanted.verify_hostname = Some(true)));
}

#[test]
fn a_word_for_a_boolean_is_no_difference() {
    let connector = |value: serde_json::Value| {
        let mut connector = inter_router("west", "p", 1);
        connector.other.insert("requireSsl".to_owned(), value);
        Entity::Connector(connector)
    };
    let live = connector(false.into());
    for same in [false.into(), "no".into(), "false".into(), "off".into()] {
        assert!(matches(&connector(same), &live));
    }
    for other in [true.into(), "yes".into(), "maybe".into()] {
        assert!(!matches(&connector(other), &live));
    }
}
