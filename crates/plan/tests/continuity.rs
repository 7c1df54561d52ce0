//! Does everybody keep verifying everybody, at every moment in the life of a CA?

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "support/cluster.rs"]
mod cluster;

use cluster::{Cluster, assert_same, verifies};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use spanwire_plan::facts::{CertificateFacts, SecretFacts};
use spanwire_plan::plan::ObjectKind::{AccessGrant, Certificate, Secret, Site};
use spanwire_plan::{labels, names};

const LEAVES: [&str; 2] = ["one", "two"];

/// A CA and two leaves, as two routers of a site would have them.
fn family(leaf_seconds: i64, ca_seconds: i64) -> Cluster {
    let mut cluster = Cluster::default();
    cluster.config.leaf_seconds = leaf_seconds;
    cluster.config.ca_seconds = ca_seconds;
    cluster.apply(
        Certificate,
        "ca",
        &json!({"ca": "", "subject": "the ca", "signing": true}),
    );
    for leaf in LEAVES {
        cluster.apply(
            Certificate,
            leaf,
            &json!({"ca": "ca", "subject": leaf, "hosts": [leaf], "server": true, "client": true}),
        );
    }
    cluster.settle();
    cluster
}

fn facts<'c>(cluster: &'c Cluster, secret: &str) -> &'c SecretFacts {
    cluster.world.secrets.get(secret).unwrap()
}

fn own<'c>(cluster: &'c Cluster, secret: &str) -> &'c CertificateFacts {
    facts(cluster, secret).certificate().unwrap()
}

fn ask(cluster: &mut Cluster, ca: &str, value: &str) {
    cluster.annotate(Certificate, ca, labels::RENEW, value);
}

/// Somebody with a credential of the CA, as it was at some moment.
#[derive(Clone)]
struct Peer {
    name: String,
    chain: Vec<CertificateFacts>,
    roots: Vec<CertificateFacts>,
}

impl Peer {
    /// A remote site that redeems a token now.
    fn redeemed(cluster: &Cluster) -> Self {
        let ca = facts(cluster, "ca");
        let now = cluster.env().now;
        let end = now + SignedDuration::from_secs(cluster.config.leaf_seconds);
        let authority = ca.certificate().unwrap();
        let leaf = CertificateFacts {
            subject: "remote".to_owned(),
            issuer: authority.subject.clone(),
            is_ca: false,
            not_after: end.min(authority.not_after),
            key_id: Some(format!("remote of {now}")),
            authority_id: authority.key_id.clone(),
            fingerprint: format!("remote of {now}"),
            ..authority.clone()
        };
        let between = ca.chain().iter().filter(|ca| ca.key_id != ca.authority_id);
        Self {
            name: format!("remote site of {now}"),
            chain: std::iter::once(leaf).chain(between.cloned()).collect(),
            roots: ca.trusted().to_vec(),
        }
    }

    /// A leaf of this namespace, as it is now.
    fn leaf(cluster: &Cluster, name: &str) -> Self {
        let facts = facts(cluster, name);
        Self {
            name: format!("{name} of {}", cluster.env().now),
            chain: facts.chain().to_vec(),
            roots: facts.trusted().to_vec(),
        }
    }

    fn lives(&self, now: Timestamp) -> bool {
        now <= self.chain[0].not_after
    }

    /// Whether this one verifies the other.
    fn believes(&self, other: &Self, now: Timestamp) -> bool {
        let valid = |all: &[CertificateFacts]| -> Vec<CertificateFacts> {
            let valid = all.iter().filter(|held| now <= held.not_after);
            valid.cloned().collect()
        };
        verifies(&valid(&other.chain), &valid(&self.roots))
    }
}

/// Both, in both directions.
fn assert_trust(one: &Peer, other: &Peer, cluster: &Cluster) {
    let now = cluster.env().now;
    for (one, other) in [(one, other), (other, one)] {
        assert!(
            one.believes(other, now),
            "{} does not believe {} at {now}, after:\n{}",
            one.name,
            other.name,
            cluster.log.join("\n")
        );
    }
}

/// Goes on act by act until there is rest, and looks after each. (The operator dies after each act, too.)
fn act_by_act(cluster: &mut Cluster, mut look: impl FnMut(&Cluster)) {
    loop {
        cluster.cut = Some(cluster.acts + 1);
        let is_at_rest = cluster.settle();
        cluster.cut = None;
        look(cluster);
        if is_at_rest {
            return;
        }
    }
}

#[test]
fn a_ca_that_is_rolled_over_leaves_nobody_behind() {
    let mut cluster = family(3600, 86_400);
    let mut peers = vec![Peer::redeemed(&cluster)];
    let mut versions: Vec<Peer> = LEAVES.map(|leaf| Peer::leaf(&cluster, leaf)).into();
    for round in ["first", "second"] {
        let before = own(&cluster, "ca").fingerprint.clone();
        ask(&mut cluster, "ca", round);
        act_by_act(&mut cluster, |cluster| {
            peers.push(Peer::redeemed(cluster));
            versions.extend(LEAVES.map(|leaf| Peer::leaf(cluster, leaf)));
            // A router may be behind, and remote sites are what they were when they redeemed.
            for version in &versions {
                for peer in peers.iter().chain(&versions) {
                    assert_trust(version, peer, cluster);
                }
            }
        });
        assert_ne!(own(&cluster, "ca").fingerprint, before, "{round}");
        for leaf in LEAVES {
            assert_eq!(own(&cluster, leaf).authority_id, own(&cluster, "ca").key_id);
        }
    }
    assert_eq!(facts(&cluster, "ca").trusted().len(), 3);
    assert_eq!(facts(&cluster, "one").chain().len(), 3);
    // What has been granted once is not granted again.
    let acts = cluster.acts;
    cluster.wait(60);
    cluster.settle();
    assert_eq!(cluster.acts, acts);
}

#[test]
fn the_bridge_is_stored_with_the_new_key_or_before() {
    let mut cluster = family(3600, 86_400);
    let old = own(&cluster, "ca").clone();
    ask(&mut cluster, "ca", "now");
    let mut changes = 0;
    act_by_act(&mut cluster, |cluster| {
        let ca = facts(cluster, "ca");
        if ca.certificate() != Some(&old) {
            changes += 1;
            let bridge = &ca.chain()[1];
            assert_eq!(bridge.authority_id, old.key_id);
            assert_eq!(
                Some(bridge.key_id.as_ref()),
                ca.certificate().map(|ca| ca.key_id.as_ref())
            );
            assert_eq!(bridge.path_length, Some(0));
        }
    });
    assert!(changes > 0);
}

#[test]
fn an_old_ca_is_dropped_when_no_leaf_of_it_can_live() {
    let mut cluster = family(60, 86_400);
    ask(&mut cluster, "ca", "now");
    cluster.settle();
    for secret in ["ca", "one", "two"] {
        assert_eq!(facts(&cluster, secret).trusted().len(), 2, "{secret}");
    }
    let key = own(&cluster, "ca").clone();
    cluster.wait(60);
    cluster.settle();
    for secret in ["ca", "one", "two"] {
        assert_eq!(facts(&cluster, secret).trusted().len(), 1, "{secret}");
        assert_eq!(facts(&cluster, secret).chain().len(), 1, "{secret}");
    }
    assert_eq!(own(&cluster, "ca"), &key, "the key stays");
}

#[test]
fn lifetimes_of_seconds_break_nothing() {
    for (leaf_seconds, ca_seconds) in [(6, 6), (6, 20), (20, 6), (6, 3600)] {
        let mut cluster = family(leaf_seconds, ca_seconds);
        let mut peers: Vec<Peer> = Vec::new();
        let before = cluster.acts;
        let mut cas = std::collections::BTreeSet::new();
        for _ in 0..120 {
            cluster.pass();
            let now = cluster.env().now;
            let ca = own(&cluster, "ca");
            cas.insert(ca.fingerprint.clone());
            peers.push(Peer::redeemed(&cluster));
            peers.retain(|peer| peer.lives(now));
            for name in LEAVES {
                let leaf = Peer::leaf(&cluster, name);
                assert!(
                    leaf.lives(now),
                    "{leaf_seconds} {ca_seconds}: {name} has expired"
                );
                assert!(own(&cluster, name).not_after <= ca.not_after || leaf.chain.len() > 1);
                for peer in &peers {
                    assert_trust(&leaf, peer, &cluster);
                }
            }
        }
        let acts = cluster.acts - before;
        let rounds = 120 / usize::try_from(leaf_seconds.min(ca_seconds)).unwrap();
        // A round is two thirds of a lifetime; in it, each Secret is issued anew and trimmed once.
        assert!(
            acts <= rounds * 3 * 4,
            "{leaf_seconds} {ca_seconds}: {acts} acts"
        );
        assert_eq!(
            cas.len() > 1,
            ca_seconds < 120,
            "{leaf_seconds} {ca_seconds}"
        );
    }
}

/// Whether each leaf believes each other one, as they are now.
fn leaves_trust_each_other(cluster: &Cluster) {
    let [one, two] = LEAVES.map(|leaf| Peer::leaf(cluster, leaf));
    assert_trust(&one, &two, cluster);
}

#[test]
fn a_ca_that_its_user_replaces_is_followed_bundles_first() {
    let mut cluster = family(3600, 86_400);
    cluster.apply(Site, "west", &json!({"defaultIssuer": "ca"}));
    cluster.apply(AccessGrant, "g", &json!({"redemptionsAllowed": 5}));
    cluster.settle();
    let mut grant = serde_json::to_value(cluster.world.access_grants.get("g").unwrap()).unwrap();
    grant["status"]["redemptions"] = json!(3);
    cluster
        .world
        .access_grants
        .insert(serde_json::from_value(grant).unwrap());
    cluster.settle();

    let remote = Peer::redeemed(&cluster);
    cluster.bring_ca("ca", "my ca", Some(0));
    let new = own(&cluster, "ca").clone();
    act_by_act(&mut cluster, leaves_trust_each_other);
    for leaf in LEAVES {
        assert_eq!(
            facts(&cluster, leaf).trusted().len(),
            2,
            "{leaf} trusts both"
        );
        assert_ne!(own(&cluster, leaf).authority_id, new.key_id, "{leaf} waits");
    }
    let told = cluster.condition(Certificate, "one", "RemoteTrust");
    assert_eq!(
        (&told["status"], &told["reason"]),
        (&json!("False"), &json!("RemoteTrustBroken"))
    );
    assert!(
        told["message"].as_str().unwrap().contains("(up to 3)"),
        "{told}"
    );
    assert_eq!(
        cluster.condition(Certificate, "one", "Ready")["status"],
        "True"
    );

    cluster.wait(11);
    act_by_act(&mut cluster, leaves_trust_each_other);
    for leaf in LEAVES {
        assert_eq!(
            own(&cluster, leaf).authority_id,
            new.key_id,
            "{leaf} follows"
        );
        let leaf = Peer::leaf(&cluster, leaf);
        let now = cluster.env().now;
        assert!(leaf.believes(&remote, now) && !remote.believes(&leaf, now));
    }
    assert_eq!(own(&cluster, "ca"), &new, "what a user has brought stays");
    assert_eq!(
        cluster.condition(Certificate, "ca", "Ready")["status"],
        "True"
    );

    cluster.wait(3600);
    cluster.settle();
    assert_eq!(
        facts(&cluster, "one").trusted(),
        facts(&cluster, "ca").trusted()
    );
    assert_eq!(
        cluster.condition(Certificate, "one", "RemoteTrust"),
        Value::Null
    );
}

#[test]
fn a_user_who_hands_out_the_bundle_first_breaks_nothing() {
    let mut cluster = family(3600, 86_400);
    cluster.delete(Certificate, "ca");
    cluster.bring_ca("ca", "mine", Some(0));
    cluster.settle();
    cluster.wait(11);
    cluster.settle();
    // The bundle, then those who redeem with it, then the new key.
    let old = facts(&cluster, "ca").clone();
    cluster.bring_ca("ca", "mine too", Some(0));
    let new = facts(&cluster, "ca").clone();
    let both = |facts: &SecretFacts| {
        let mut facts = facts.clone();
        let mut roots = facts.files["ca.crt"].clone();
        roots.certificates = vec![old.trusted()[0].clone(), new.trusted()[0].clone()];
        facts.files.insert("ca.crt".to_owned(), roots);
        facts
    };
    let store = |cluster: &mut Cluster, facts: SecretFacts, version: &str| {
        let mut facts = facts;
        facts.metadata.resource_version = Some(version.to_owned());
        cluster.world.secrets.insert(facts);
        cluster.settle();
    };
    store(&mut cluster, both(&old), "bundle");
    let remote = Peer::redeemed(&cluster);
    store(&mut cluster, both(&new), "new");
    for _ in 0..3 {
        cluster.wait(6);
        act_by_act(&mut cluster, |cluster| {
            for leaf in LEAVES {
                assert_trust(&Peer::leaf(cluster, leaf), &remote, cluster);
            }
            leaves_trust_each_other(cluster);
        });
    }
    assert_eq!(
        own(&cluster, "one").authority_id,
        own(&cluster, "ca").key_id
    );
}

#[test]
fn a_ca_with_path_length_0_is_not_rolled_over_but_told_of() {
    let mut cluster = family(3600, 86_400);
    cluster.bring_ca("ca", "my ca", Some(0));
    cluster.settle();
    let mine = own(&cluster, "ca").clone();
    ask(&mut cluster, "ca", "now");
    cluster.settle();
    let told = cluster.condition(Certificate, "ca", "Ready");
    assert_eq!(told["reason"], "CaCannotCross", "{told}");
    assert!(
        told["message"].as_str().unwrap().contains("first"),
        "{told}"
    );
    assert_eq!(own(&cluster, "ca"), &mine);
    // One that can be crossed is.
    cluster.bring_ca("ca", "my ca", None);
    let mine = own(&cluster, "ca").clone();
    cluster.settle();
    assert_eq!(facts(&cluster, "ca").chain()[1].authority_id, mine.key_id);
}

#[test]
fn a_wish_that_was_granted_once_does_not_mint_in_the_place_of_a_lost_ca() {
    let mut cluster = family(3600, 86_400);
    ask(&mut cluster, "ca", "now");
    cluster.settle();
    cluster.delete(Secret, "ca");
    cluster.settle();
    assert!(cluster.world.secrets.get("ca").is_none());
    let told = cluster.condition(Certificate, "ca", "Ready");
    assert_eq!(told["reason"], "CaLost", "{told}");
    assert!(
        told["message"]
            .as_str()
            .unwrap()
            .ends_with("--overwrite internal.spanwire.io/renew=again")
    );
    ask(&mut cluster, "ca", "again");
    cluster.settle();
    cluster.wait(11);
    cluster.settle();
    assert_eq!(
        own(&cluster, "one").authority_id,
        own(&cluster, "ca").key_id
    );
    // The two of before, which do not vouch for it, and the new one.
    assert_eq!(facts(&cluster, "one").trusted().len(), 3);
}

/// What tells a person what to do, and the value that it names.
fn told_lost(cluster: &Cluster, ca: &str) -> String {
    let told = cluster.condition(Certificate, ca, "Ready");
    assert_eq!(told["reason"], "CaLost", "{told}");
    let message = told["message"].as_str().unwrap();
    let (_, value) = message.rsplit_once('=').unwrap();
    value.to_owned()
}

/// All but the router's own, which no configuration that is stored can do without.
fn delete_secrets(cluster: &mut Cluster) {
    let secrets = cluster.world.secrets.iter();
    let secrets: Vec<_> = secrets
        .filter_map(|facts| facts.metadata.name.clone())
        .collect();
    for secret in secrets {
        if secret != names::CREDENTIALS {
            cluster.delete(Secret, &secret);
        }
    }
}

#[test]
fn a_ca_that_went_with_its_leaves_is_not_minted_in_silence() {
    let mut cluster = family(3600, 86_400);
    for value in ["now", "again", "now"] {
        delete_secrets(&mut cluster);
        for _ in 0..3 {
            cluster.wait(60);
            cluster.settle();
        }
        assert!(cluster.world.secrets.get("ca").is_none(), "a CA was minted");
        assert_eq!(told_lost(&cluster, "ca"), value);
        // The operator dies in the middle of what was asked for.
        ask(&mut cluster, "ca", value);
        act_by_act(&mut cluster, |_| {});
        for leaf in LEAVES {
            assert_eq!(own(&cluster, leaf).authority_id, own(&cluster, "ca").key_id);
        }
    }
}

#[test]
fn a_wish_of_before_and_junk_on_the_way_do_not_make_a_lost_ca_forgotten() {
    let mut cluster = family(3600, 86_400);
    ask(&mut cluster, "ca", "in spring");
    cluster.settle();
    for leaf in LEAVES {
        cluster.delete(Secret, leaf);
        cluster.delete(Certificate, leaf);
    }
    cluster.spoil("ca");
    cluster.settle();
    told_lost(&cluster, "ca");
    cluster.delete(Secret, "ca");
    cluster.settle();
    told_lost(&cluster, "ca");
    // One that nobody has named.
    ask(&mut cluster, "ca", "in autumn");
    cluster.settle();
    let value = told_lost(&cluster, "ca");
    ask(&mut cluster, "ca", &value);
    cluster.settle();
    assert_eq!(
        cluster.condition(Certificate, "ca", "Ready")["status"],
        "True"
    );
}

#[test]
fn a_ca_that_nobody_can_miss_is_made_anew() {
    // It has expired since.
    let mut cluster = family(3600, 86_400);
    delete_secrets(&mut cluster);
    cluster.settle();
    told_lost(&cluster, "ca");
    cluster.wait(86_400);
    cluster.settle();
    own(&cluster, "ca");
    // It is another Certificate, under the same name.
    delete_secrets(&mut cluster);
    cluster.settle();
    told_lost(&cluster, "ca");
    cluster.delete(Certificate, "ca");
    let spec = json!({"ca": "", "subject": "the ca", "signing": true});
    cluster.apply(Certificate, "ca", &spec);
    cluster.settle();
    own(&cluster, "ca");
}

#[test]
fn a_site_without_its_secrets_asks_for_nothing_but_the_ca_that_remote_sites_know() {
    let mut cluster = Cluster::default();
    cluster.apply(Site, "west", &json!({"linkAccess": "default"}));
    cluster.settle();
    delete_secrets(&mut cluster);
    cluster.settle();
    let value = told_lost(&cluster, names::SITE_CA);
    own(&cluster, names::LOCAL_CA);
    own(&cluster, names::LOCAL_SERVER);
    ask(&mut cluster, names::SITE_CA, &value);
    cluster.settle();
    own(&cluster, names::SITE_SERVER);
    // With it as the issuer, remote sites know that one, too.
    cluster.apply(
        Site,
        "west",
        &json!({"linkAccess": "default", "defaultIssuer": names::LOCAL_CA}),
    );
    cluster.settle();
    delete_secrets(&mut cluster);
    cluster.settle();
    told_lost(&cluster, names::LOCAL_CA);
}

#[test]
fn junk_in_the_place_of_a_ca_is_a_lost_ca() {
    let mut cluster = family(3600, 86_400);
    cluster.spoil("ca");
    let acts = cluster.acts;
    cluster.settle();
    assert_eq!(cluster.acts, acts, "nothing is minted in silence");
    let told = cluster.condition(Certificate, "ca", "Ready");
    assert_eq!(told["reason"], "CaLost", "{told}");
}

#[test]
fn a_deleted_leaf_comes_back_from_the_same_ca() {
    let mut cluster = family(3600, 86_400);
    let (ca, leaf) = (own(&cluster, "ca").clone(), own(&cluster, "one").clone());
    cluster.delete(Secret, "one");
    cluster.pass();
    assert_ne!(own(&cluster, "one"), &leaf);
    assert_eq!(
        (own(&cluster, "ca"), &own(&cluster, "one").authority_id),
        (&ca, &ca.key_id)
    );
}

/// A whole site, whose configuration names credentials all the time: the law of it is looked at after each act.
#[test]
fn a_rollover_cut_short_after_any_act_comes_to_rest() {
    let mut before = Cluster::default();
    before.apply(Site, "west", &json!({"linkAccess": "default"}));
    before.settle();
    ask(&mut before, names::SITE_CA, "now");
    let mut whole = before.clone();
    whole.settle();
    assert!(whole.acts > before.acts + 2, "{:?}", whole.log);
    for cut in before.acts..whole.acts {
        let mut cluster = before.clone();
        cluster.cut = Some(cut);
        assert!(!cluster.settle(), "it was not cut after {cut}");
        cluster.cut = None;
        cluster.settle();
        assert_same(&cluster.world, &whole.world, &format!("cut after {cut}"));
    }
}
