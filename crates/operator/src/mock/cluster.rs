//! What would a cluster hold that has a site with a grant, and one that redeems it?

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use k8s_openapi::ByteString;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use spanwire_api::{AccessGrant, Endpoint};
use spanwire_plan::offer::Offer;
use spanwire_plan::plan::{Child, Event, Issue, Legacy, ObjectKind, Redeem, Source};

use super::ApiServer;
use crate::clock::Clock;
use crate::grants::{Directory, GrantRecord, Granted, Server, Terms};
use crate::pki::{self, Credential, Signer};
use crate::telemetry::Metrics;

pub(crate) const GRANT: &str = "/apis/skupper.io/v2alpha1/namespaces/east/accessgrants/g";
pub(crate) const CA: &str = "/api/v1/namespaces/east/secrets/skupper-site-ca";
pub(crate) const CODE: &str = "AbcdefghijklmnopqrstuvwX";

pub(crate) fn order(subject: &str, hosts: &[&str], is_signed: bool) -> Issue {
    let clock = Clock::default().now();
    Issue {
        secret: Child {
            kind: ObjectKind::Secret,
            object: Value::Null,
            data: BTreeMap::new(),
            unwanted: Vec::new(),
        },
        live: None,
        subject: subject.to_owned(),
        hosts: hosts.iter().map(|&host| host.to_owned()).collect(),
        client: false,
        server: true,
        signer: is_signed.then(|| Source {
            secret: String::new(),
            uid: String::new(),
            resource_version: String::new(),
        }),
        not_before: clock,
        not_after: Timestamp::from_second(clock.as_second() + 3600).unwrap(),
        rsa: false,
        legacy: Legacy::default(),
        event: Event {
            warning: false,
            reason: String::new(),
            note: String::new(),
        },
    }
}

pub(crate) fn authority(subject: &str) -> Credential {
    pki::issue(&order(subject, &[], false), None).unwrap()
}

pub(crate) fn signed(by: &Credential, hosts: &[&str]) -> Credential {
    pki::issue(&order("server", hosts, true), Some(&signer(by))).unwrap()
}

pub(crate) fn signer(ca: &Credential) -> Signer {
    Signer {
        certificate: ca.certificate.clone(),
        roots: ca.ca.clone(),
        key: ca.key.clone(),
    }
}

/// A cluster with a site in `east` and a grant for it.
pub(crate) struct Cluster {
    pub(crate) api: ApiServer,
    pub(crate) site: Arc<Mutex<Option<Offer>>>,
    pub(crate) events: Arc<Mutex<Vec<String>>>,
}

impl Cluster {
    pub(crate) fn new(allowed: i64) -> Self {
        Self::signed_by(&authority("site ca"), allowed)
    }

    pub(crate) fn signed_by(ca: &Credential, allowed: i64) -> Self {
        let api = ApiServer::new();
        let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
        api.put(
            CA,
            json!({
                "apiVersion": "v1", "kind": "Secret",
                "metadata": {"name": "skupper-site-ca", "namespace": "east"},
                "data": {"tls.crt": bytes(&ca.certificate), "tls.key": bytes(&ca.key), "ca.crt": bytes(&ca.ca)},
            }),
        );
        api.put(
            GRANT,
            json!({
                "apiVersion": "skupper.io/v2alpha1", "kind": "AccessGrant",
                "metadata": {"name": "g", "namespace": "east", "uid": "grant-uid"},
                "spec": {"redemptionsAllowed": allowed},
                "status": {"code": CODE, "expirationTime": in_seconds(900)},
            }),
        );
        let endpoint = |name: &str, port: &str| Endpoint {
            name: name.to_owned(),
            host: "10.9.8.7".to_owned(),
            port: port.to_owned(),
            group: "skupper-router".to_owned(),
        };
        let site = Offer {
            edge: false,
            issuer: "skupper-site-ca".to_owned(),
            endpoints: vec![
                endpoint("inter-router", "55671"),
                endpoint("edge", "45671"),
                endpoint("normal", "1"),
            ],
        };
        Self {
            api,
            site: Arc::new(Mutex::new(Some(site))),
            events: Arc::default(),
        }
    }

    /// A replica whose stores know everything at once.
    pub(crate) fn server(&self) -> Arc<Server> {
        let api = self.api.clone();
        self.server_that_knows(move || api.get(GRANT))
    }

    pub(crate) fn server_that_knows(
        &self,
        grant: impl Fn() -> Option<Value> + Clone + Send + Sync + 'static,
    ) -> Arc<Server> {
        self.server_with(self.directory(grant))
    }

    pub(crate) fn directory(
        &self,
        grant: impl Fn() -> Option<Value> + Clone + Send + Sync + 'static,
    ) -> Directory {
        let known = move |uid: &str| -> Option<AccessGrant> {
            let grant: AccessGrant = serde_json::from_value(grant()?).unwrap();
            (grant.metadata.uid.as_deref() == Some(uid)).then_some(grant)
        };
        let (code, grant) = (known.clone(), known);
        let (site, events) = (self.site.clone(), self.events.clone());
        let api = self.api.clone();
        let revision = move |issuer: &str| {
            let secret = api.get(&CA.replace("skupper-site-ca", issuer))?;
            Some(secret["metadata"]["resourceVersion"].as_str()?.to_owned())
        };
        Directory {
            is_complete: Arc::new(|| true),
            code: Arc::new(move |uid| {
                let code = code(uid).and_then(|grant| grant.status?.code);
                let is_known = u8::from(code.is_some()).into();
                (Sha256::digest(code.unwrap_or_default()).into(), is_known)
            }),
            grant: Arc::new(move |uid| {
                let offer = site.lock().unwrap().clone();
                let grant = grant(uid)?;
                let issuer = offer
                    .as_ref()
                    .map(|offer| offer.issuer(grant.spec.issuer.as_deref()));
                Some(Granted {
                    issuer_revision: issuer.and_then(&revision),
                    grant: GrantRecord::of(&grant),
                    offer,
                })
            }),
            told: Arc::new(|_| Map::new()),
            announce: Arc::new(move |_, event| events.lock().unwrap().push(event.reason)),
        }
    }

    pub(crate) fn server_with(&self, directory: Directory) -> Arc<Server> {
        let terms = Terms {
            leaf_seconds: 3600,
            rsa: false,
        };
        let metrics = Arc::new(Metrics::new("0"));
        Arc::new(Server::new(
            self.api.client(),
            Clock::default(),
            directory,
            terms,
            metrics,
        ))
    }

    pub(crate) fn edit(&self, change: impl FnOnce(&mut Value)) {
        let mut grant = self.api.get(GRANT).unwrap();
        change(&mut grant);
        self.api.put(GRANT, grant);
    }

    pub(crate) fn counted(&self) -> i64 {
        let grant = self.api.get(GRANT).unwrap();
        let claims = grant
            .pointer("/status/claims")
            .and_then(Value::as_array)
            .map_or(0, Vec::len);
        let count = grant
            .pointer("/status/redemptions")
            .and_then(Value::as_i64)
            .unwrap_or_default();
        assert_eq!(i64::try_from(claims).unwrap(), count);
        count
    }
}

pub(crate) fn in_seconds(seconds: i64) -> String {
    let now = Clock::default().now().as_second();
    Timestamp::from_second(now + seconds).unwrap().to_string()
}

/// What the plan asks for a token `t` in `west`.
pub(crate) fn act(generation: i64) -> Redeem {
    Redeem {
        namespace: "west".to_owned(),
        token: "t".to_owned(),
        uid: "token-uid".to_owned(),
        generation,
        subject: "site-uid".to_owned(),
        secret: Child {
            kind: ObjectKind::Secret,
            object: json!({
                "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
                "metadata": {
                    "name": "t", "namespace": "west", "annotations": {"internal.spanwire.io/token": "token-uid"},
                    "ownerReferences": [{"apiVersion": "skupper.io/v2alpha1", "kind": "Site", "name": "s", "uid": "site-uid"}],
                },
            }),
            data: BTreeMap::new(),
            unwanted: Vec::new(),
        },
    }
}
