//! What would an API server do, as far as a unit test has to know?
//!
//! Objects by path, a revision that moves, and faults on demand. It is dumb on purpose: what depends on admission,
//! schema, garbage collection or watches is tested on the real one.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test, and a fuzzer, is to stop where this is used as it should not be"
)]
#![cfg_attr(not(test), allow(dead_code, reason = "a fuzzer needs less of it"))]

pub(crate) mod cluster;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use http_body_util::BodyExt;
use hyper::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tower::service_fn;

use crate::act::Workshop;
use crate::clock::Clock;
use crate::dying::Dying;
use crate::lease::Leading;
use crate::redeem::{Policy, Pool};
use crate::telemetry::Metrics;

/// A workshop whose redemptions nobody hears of.
pub(crate) fn workshop(
    client: Client,
    leading: Leading,
    metrics: Arc<Metrics>,
    dying: Dying,
) -> Workshop {
    let pool = Pool::new(
        client.clone(),
        Clock::default(),
        Policy::default(),
        leading,
        metrics.clone(),
        Arc::new(|_, _| {}),
        dying.clone(),
    );
    Workshop {
        client,
        pool,
        metrics,
        dying,
    }
}

/// An API server in memory; clones share it.
#[derive(Clone)]
pub(crate) struct ApiServer(Arc<Mutex<State>>);

struct State {
    objects: BTreeMap<String, Value>,
    revision: u64,
    calls: Vec<Call>,
    fault: Arc<dyn Fn(&Call) -> Fault + Send + Sync>,
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) method: String,
    pub(crate) path: String,
    /// How many requests of this method and path there were before.
    pub(crate) before: usize,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is answered.
    None,
    /// It is refused with this code, and nothing is done.
    Refuse(u16),
    /// It is refused as in a namespace that is being deleted.
    NamespaceGoes,
    /// It is done, and the answer is lost.
    LoseAnswer,
    /// It is done, and the answer is this code.
    DoAndRefuse(u16),
    /// It never gets there.
    LoseRequest,
    /// It is not answered.
    Hang,
}

impl ApiServer {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(State {
            objects: BTreeMap::new(),
            revision: 0,
            calls: Vec::new(),
            fault: Arc::new(|_| Fault::None),
        })))
    }

    pub(crate) fn client(&self) -> Client {
        let server = self.clone();
        let service = service_fn(move |request: Request<Body>| server.clone().serve(request));
        Client::new(service, "default")
    }

    /// Puts an object where it belongs, as somebody else would.
    pub(crate) fn put(&self, path: &str, object: Value) {
        self.state().write(path, object);
    }

    /// Takes an object away, as somebody else would.
    pub(crate) fn remove(&self, path: &str) {
        self.state().objects.remove(path);
    }

    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        self.state().objects.get(path).cloned()
    }

    pub(crate) fn fault(&self, fault: impl Fn(&Call) -> Fault + Send + Sync + 'static) {
        self.state().fault = Arc::new(fault);
    }

    /// How many requests of this method there were for paths that end so.
    pub(crate) fn count(&self, method: &str, path: &str) -> usize {
        let state = self.state();
        state
            .calls
            .iter()
            .filter(|call| call.method == method && call.path.ends_with(path))
            .count()
    }

    async fn serve(self, request: Request<Body>) -> Result<Response<Body>, &'static str> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map_err(|_| "no body")?.to_bytes();
        let (fault, call) = {
            let mut state = self.state();
            let (method, path) = (head.method.to_string(), head.uri.path().to_owned());
            let is_same = |call: &&Call| call.method == method && call.path == path;
            let before = state.calls.iter().filter(is_same).count();
            let call = Call {
                method,
                path,
                before,
            };
            state.calls.push(call.clone());
            (state.fault.clone(), call)
        };
        let fault = fault(&call);
        let answer = |(code, body): (u16, Value)| {
            let body = Body::from(serde_json::to_vec(&body).map_err(|_| "no JSON")?);
            Response::builder()
                .status(code)
                .body(body)
                .map_err(|_| "no response")
        };
        match fault {
            Fault::None => answer(self.state().answer(&call, &body)),
            Fault::Refuse(code) => answer(refusal(code, "Fault")),
            Fault::NamespaceGoes => answer(refusal(
                403,
                "unable to create new content in namespace a because it is being terminated",
            )),
            Fault::LoseAnswer => {
                self.state().answer(&call, &body);
                Err("connection reset")
            }
            Fault::DoAndRefuse(code) => {
                self.state().answer(&call, &body);
                answer(refusal(code, "Fault"))
            }
            Fault::LoseRequest => Err("connection refused"),
            Fault::Hang => std::future::pending().await,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0
            .lock()
            .expect("no test panics while it holds the state")
    }
}

impl State {
    fn answer(&mut self, call: &Call, body: &[u8]) -> (u16, Value) {
        let path = call.path.trim_end_matches("/status");
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let live = self.objects.get(path).cloned();
        match (call.method.as_str(), live) {
            ("POST", _) => {
                let name = body.pointer("/metadata/name").and_then(Value::as_str);
                let path = format!("{path}/{}", name.unwrap_or_default());
                if self.objects.contains_key(&path) {
                    return refusal(409, "AlreadyExists");
                }
                (201, self.write(&path, body))
            }
            (_, None) => refusal(404, "NotFound"),
            ("GET", Some(live)) => (200, live),
            ("PUT", Some(live)) if revision(&live) == revision(&body) => {
                (200, self.write(path, body))
            }
            ("PUT", Some(_)) => refusal(409, "Conflict"),
            ("PATCH", Some(mut live)) => {
                let guard = body.pointer("/0/value");
                if body.pointer("/0/path") == Some(&json!("/metadata/resourceVersion"))
                    && guard != revision(&live)
                {
                    return refusal(409, "Conflict");
                }
                let changes: json_patch::Patch =
                    serde_json::from_value(body).expect("a JSON patch");
                match json_patch::patch(&mut live, &changes) {
                    Ok(()) => (200, self.write(path, live)),
                    Err(_) => refusal(422, "Invalid"),
                }
            }
            _ => refusal(405, "MethodNotAllowed"),
        }
    }

    fn write(&mut self, path: &str, mut object: Value) -> Value {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        if object.pointer("/metadata/uid").is_none() {
            object["metadata"]["uid"] = json!(format!("uid-{}", self.revision));
        }
        self.objects.insert(path.to_owned(), object.clone());
        object
    }
}

fn revision(object: &Value) -> Option<&Value> {
    object.pointer("/metadata/resourceVersion")
}

fn refusal(code: u16, reason: &str) -> (u16, Value) {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": code, "reason": reason, "message": reason,
    });
    (code, status)
}
