//! Do plans and the workshop agree on what is issued, with real keys, so that there is rest at the end?
//!
//! Facts of what is stored, a plan of these, its acts on an API server in memory, and again.

use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair};
use spanwire_plan::facts::SecretFacts;
use spanwire_plan::plan::Act;
use spanwire_plan::{Config, Env, World, kinds, labels};

use super::*;
use crate::dying::Dying;
use crate::facts;
use crate::lease::Leading;
use crate::mock::ApiServer;
use crate::pki::{client_credential, pem};
use crate::telemetry::Metrics;

const SECRETS: &str = "/api/v1/namespaces/west/secrets";

struct Bench {
    api: ApiServer,
    workshop: Workshop,
    config: Config,
    now: Timestamp,
    certificates: Vec<Value>,
    secrets: Vec<&'static str>,
    /// Each stored revision of each Secret, in order.
    history: Vec<Secret>,
}

impl Bench {
    /// A CA of ours and two leaves of it.
    fn family(leaf_seconds: i64, ca_seconds: i64) -> Self {
        let mut bench = Self::new(leaf_seconds, ca_seconds);
        bench.certificate(
            "ca",
            &json!({"ca": "", "subject": "the ca", "signing": true}),
        );
        for leaf in ["one", "two"] {
            bench.certificate(
                leaf,
                &json!({"ca": "ca", "subject": leaf, "hosts": [leaf, "10.0.0.1"]}),
            );
        }
        bench
    }

    fn new(leaf_seconds: i64, ca_seconds: i64) -> Self {
        let api = ApiServer::new();
        let metrics = Arc::new(Metrics::new("0"));
        let (_until, leading) = Leading::for_test();
        Self {
            workshop: crate::mock::workshop(api.client(), leading, metrics, Dying::default()),
            api,
            config: Config {
                leaf_seconds,
                ca_seconds,
                ..Config::default()
            },
            now: Timestamp::from_second(1_800_000_000).unwrap(),
            certificates: Vec::new(),
            secrets: Vec::new(),
            history: Vec::new(),
        }
    }

    fn certificate(&mut self, name: &'static str, spec: &Value) {
        self.secrets.push(name);
        self.certificates.push(json!({
            "metadata": {"name": name, "namespace": "west", "uid": format!("uid of {name}")},
            "spec": spec,
        }));
    }

    fn ask(&mut self, value: &str) {
        self.certificates[0]["metadata"]["annotations"] = json!({labels::RENEW: value});
    }

    fn secret(&self, name: &str) -> Option<Secret> {
        let stored = self.api.get(&format!("{SECRETS}/{name}"))?;
        Some(serde_json::from_value(stored).unwrap())
    }

    fn facts(&self, name: &str) -> SecretFacts {
        facts::secret_facts(&self.secret(name).unwrap())
    }

    /// Puts other files into a Secret, as a user would.
    fn put(&mut self, name: &'static str, files: &[(&str, &str)]) {
        let path = format!("{SECRETS}/{name}");
        let mut object = self.api.get(&path).unwrap_or_else(|| {
            self.secrets.push(name);
            json!({"metadata": {"name": name, "namespace": "west"}, "type": "kubernetes.io/tls"})
        });
        let files = files.iter().map(|(name, text)| {
            (
                (*name).to_owned(),
                json!(ByteString(text.as_bytes().to_vec())),
            )
        });
        object["data"] = Value::Object(files.collect());
        self.api.put(&path, object);
    }

    fn world(&self) -> World {
        let mut world: World =
            serde_json::from_value(json!({"namespace": "west", "certificates": self.certificates}))
                .unwrap();
        for name in &self.secrets {
            if let Some(secret) = self.secret(name) {
                world.secrets.insert(facts::secret_facts(&secret));
            }
        }
        world
    }

    /// Passes until there is nothing to do; gives back how many writes there were.
    async fn settle(&mut self) -> usize {
        let mut writes = 0;
        for _ in 0..8 {
            let env = Env {
                now: self.now,
                nonce: 0,
                config: &self.config,
            };
            let plans = kinds::plans(&self.world(), &env);
            let acts: Vec<Act> = plans
                .values()
                .flat_map(|plan| plan.acts().cloned())
                .collect();
            if acts.is_empty() {
                return writes;
            }
            for act in acts {
                let Act::Issue(order) = act else {
                    panic!("{act:?}")
                };
                match self.workshop.issue(&order).await {
                    Ok(()) => writes += 1,
                    // The CA has changed in this pass.
                    Err(error) => assert!(error.is_stale(), "{error}"),
                }
                let stored = self.secret(order.secret.name()).unwrap();
                self.history.push(stored);
            }
        }
        panic!("no rest after 8 passes: {:#?}", self.world().secrets);
    }

    fn wait(&mut self, seconds: i64) {
        self.now += SignedDuration::from_secs(seconds);
    }

    /// What a remote site gets that redeems a token now.
    fn redeemed(&self) -> Credential {
        let ca = Signer::from_secret(&self.secret("ca").unwrap()).unwrap();
        let end = self.now + SignedDuration::from_secs(self.config.leaf_seconds);
        client_credential("remote", &ca.authority().unwrap(), self.now, end, false).unwrap()
    }

    /// Whether a leaf and a remote site verify each other.
    fn trust_each_other(&self, leaf: &str, remote: &Credential) -> bool {
        let leaf = self.secret(leaf).unwrap().data.unwrap();
        let chain = |ca: &[u8], chain: &[u8]| facts::pair(Some(ca), chain, &[]).chain_error;
        chain(remote.ca.as_bytes(), &leaf["tls.crt"].0).is_none()
            && chain(&leaf["ca.crt"].0, remote.certificate.as_bytes()).is_none()
    }
}

#[tokio::test]
async fn a_rollover_is_one_write_a_secret_and_cuts_nobody_off() {
    let mut bench = Bench::family(3600, 86_400);
    bench.settle().await;
    let old = bench.facts("ca");
    let before = bench.redeemed();
    bench.ask("now");
    bench.history.clear();
    assert_eq!(bench.settle().await, 3);
    let after = bench.redeemed();
    for leaf in ["one", "two"] {
        for remote in [&before, &after] {
            assert!(bench.trust_each_other(leaf, remote), "{leaf}");
        }
        assert_eq!(bench.facts(leaf).chain().len(), 2);
    }
    // In every stored revision a CA with another key has the bridge beside it.
    let cas = bench
        .history
        .iter()
        .filter(|stored| stored.metadata.name.as_deref() == Some("ca"));
    for stored in cas.map(facts::secret_facts) {
        assert_ne!(stored.certificate(), old.certificate());
        assert_eq!(
            stored.chain()[1].authority_id,
            old.certificate().unwrap().key_id
        );
        assert_eq!(stored.trusted()[1..], *old.trusted());
        let own = stored.certificate().map(|own| &own.fingerprint);
        assert_eq!(stored.annotation(labels::ISSUED), own);
    }

    bench.wait(3600);
    assert!(bench.settle().await > 0);
    for secret in ["ca", "one", "two"] {
        let facts = bench.facts(secret);
        assert_eq!(
            (facts.chain().len(), facts.trusted().len()),
            (1, 1),
            "{secret}"
        );
        assert_eq!(facts.pair.unwrap().chain_error, None, "{secret}");
    }
}

#[tokio::test]
async fn a_second_rollover_comes_to_rest_too() {
    let mut bench = Bench::family(3600, 86_400);
    bench.settle().await;
    let first = bench.redeemed();
    for round in ["one", "two"] {
        bench.ask(round);
        assert_eq!(bench.settle().await, 3, "{round}");
        assert!(bench.trust_each_other("one", &first), "{round}");
    }
    assert_eq!(bench.facts("one").chain().len(), 3);
}

#[tokio::test]
async fn a_ca_that_its_user_replaces_is_followed_in_two_steps() {
    let mut bench = Bench::family(3600, 86_400);
    bench.settle().await;
    let (remote, old) = (bench.redeemed(), bench.facts("one"));
    let other = Bench::family(3600, 86_400);
    let ca = {
        let mut other = other;
        other.settle().await;
        other.secret("ca").unwrap().data.unwrap()
    };
    let text = |file: &str| String::from_utf8(ca[file].0.clone()).unwrap();
    bench.put(
        "ca",
        &[("tls.crt", &text("tls.crt")), ("tls.key", &text("tls.key"))],
    );
    assert_eq!(bench.settle().await, 2, "each leaf trusts both");
    assert_eq!(bench.facts("one").certificate(), old.certificate());
    assert!(bench.trust_each_other("one", &remote));
    bench.wait(11);
    assert_eq!(bench.settle().await, 2, "each leaf follows");
    assert!(bench.trust_each_other("one", &bench.redeemed()));
    assert_eq!(bench.facts("one").trusted().len(), 2);
    bench.wait(3600);
    bench.settle().await;
    assert_eq!(bench.facts("one").trusted().len(), 1);
}

/// A leaf was issued anew for ever where its CA was an intermediate that is not itself among the roots.
#[tokio::test]
async fn a_leaf_of_an_intermediate_is_issued_once_with_the_chain_as_it_is() {
    let ca = |name: &str| {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params
    };
    let root =
        rcgen::CertifiedIssuer::self_signed(ca("Root"), KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let between = ca("Intermediate").signed_by(&key, &root).unwrap();
    let key = pem::section("PRIVATE KEY", key.serialized_der());
    let shapes = [
        (between.pem(), Some(root.pem())),
        (between.pem() + &root.pem(), None),
        (between.pem(), Some(between.pem())),
        (between.pem() + &root.pem(), Some(root.pem())),
        (between.pem(), None),
    ];
    for (certificate, roots) in shapes {
        let mut bench = Bench::new(3600, 86_400);
        let mut files = vec![("tls.crt", certificate.as_str()), ("tls.key", key.as_str())];
        files.extend(roots.as_deref().map(|roots| ("ca.crt", roots)));
        bench.put("ca", &files);
        bench.certificate(
            "one",
            &json!({"ca": "ca", "subject": "one", "hosts": ["one"]}),
        );
        assert_eq!(bench.settle().await, 1);
        let facts = bench.facts("one");
        assert_eq!(facts.pair.as_ref().unwrap().chain_error, None);
        assert_eq!(facts.chain()[1].subject, "Intermediate");
    }
}

#[tokio::test]
async fn lifetimes_of_seconds_are_kept_up_with() {
    let mut bench = Bench::family(6, 6);
    bench.settle().await;
    let mut writes = 0;
    let mut remotes: Vec<(Timestamp, Credential)> = Vec::new();
    for _ in 0..24 {
        bench.wait(1);
        writes += bench.settle().await;
        remotes.push((bench.now, bench.redeemed()));
        let now = bench.now;
        remotes.retain(|(made, _)| now < *made + SignedDuration::from_secs(2));
        let ca = bench.facts("ca").certificate().unwrap().not_after;
        for leaf in ["one", "two"] {
            let end = bench.facts(leaf).certificate().unwrap().not_after;
            assert!(now < end && end <= ca, "{leaf}: {now} {end} {ca}");
            for (_, remote) in &remotes {
                assert!(bench.trust_each_other(leaf, remote), "{leaf} at {now}");
            }
        }
    }
    // Six rounds of two thirds of six seconds, in each every Secret anew and trimmed at most.
    assert!((18..=54).contains(&writes), "{writes}");
}
