//! How long does it take to compare a large router with what is wanted?
#![allow(clippy::unwrap_used, reason = "a benchmark may fail by panicking")]

use criterion::{Criterion, criterion_group, criterion_main};
use serde_json::json;
use spanwire_router::config::Document;
use spanwire_router::diff::{Live, Wanted, diff};
use spanwire_router::entity::Entity;
use std::hint::black_box;

/// Listeners, and as many connectors.
const SIZE: u32 = 1500;

fn document(connectors: u32) -> Document {
    let profile = json!(["sslProfile", {"name": "p", "caCertFile": "/c", "certFile": "/t", "privateKeyFile": "/k"}]);
    let listeners = (0..SIZE).map(|number| {
        json!(["listener", {
            "name": format!("listener-{number}"), "role": "normal", "host": "127.0.0.1",
            "port": (10_000 + number).to_string(), "sslProfile": "p", "authenticatePeer": true
        }])
    });
    let connectors = (0..connectors).map(|number| {
        json!(["connector", {
            "name": format!("connector-{number}"), "role": "inter-router", "host": "west.example",
            "port": (10_000 + number).to_string(), "sslProfile": "p", "cost": 1
        }])
    });
    let entities: Vec<_> = std::iter::once(profile)
        .chain(listeners)
        .chain(connectors)
        .collect();
    Document::parse(json!(entities).to_string().as_bytes()).unwrap()
}

fn one_change(criterion: &mut Criterion) {
    let live = Live::new(document(SIZE).entities);
    let entities = document(SIZE + 1).entities;
    let profiles = entities.iter().filter_map(|entity| match entity {
        Entity::SslProfile(profile) => Some(profile.clone()),
        _ => None,
    });
    let wanted = Wanted::new(&entities, profiles);
    assert_eq!(diff(&wanted, &live).len(), 1);
    let name = format!("one change among {SIZE} listeners and {SIZE} connectors");
    criterion.bench_function(&name, |bencher| {
        bencher.iter(|| diff(black_box(&wanted), black_box(&live)));
    });
}

criterion_group!(benches, one_change);
criterion_main!(benches);
