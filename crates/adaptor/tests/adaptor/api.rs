//! What does the API server get to see?

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::Json;
use axum::routing::patch;
use serde_json::{Value, json};
use spanwire_router::report::Report;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// An API server that knows one ConfigMap.
pub(crate) struct Api {
    pub(crate) url: String,
    seen: Arc<Mutex<Seen>>,
    runtime: Option<Runtime>,
}

#[derive(Default)]
struct Seen {
    paths: Vec<String>,
    reports: Vec<Report>,
    keys: Vec<String>,
    is_missing: bool,
}

impl Api {
    pub(crate) fn start() -> Self {
        let runtime = Runtime::new().unwrap();
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let path = "/api/v1/namespaces/{namespace}/configmaps/{name}";
        let service = Router::new()
            .route(path, patch(receive))
            .with_state(Arc::clone(&seen));
        runtime.spawn(async move { axum::serve(listener, service).await });
        Self {
            url,
            seen,
            runtime: Some(runtime),
        }
    }

    /// The reports so far.
    pub(crate) fn reports(&self) -> Vec<Report> {
        self.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .reports
            .clone()
    }

    /// The last report.
    pub(crate) fn report(&self) -> Report {
        self.seen
            .lock()
            .unwrap()
            .reports
            .last()
            .cloned()
            .unwrap_or_default()
    }

    /// The paths and keys that were written, each once.
    pub(crate) fn written(&self) -> (Vec<String>, Vec<String>) {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut paths, mut keys) = (seen.paths.clone(), seen.keys.clone());
        paths.dedup();
        keys.dedup();
        (paths, keys)
    }

    /// Goes away for good.
    pub(crate) fn leave(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    /// Lets the ConfigMap be there or not.
    pub(crate) fn set_missing(&self, is_missing: bool) {
        self.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_missing = is_missing;
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        self.leave();
    }
}

async fn receive(
    State(seen): State<Arc<Mutex<Seen>>>,
    uri: Uri,
    body: Bytes,
) -> (StatusCode, Json<Value>) {
    let mut seen = seen.lock().unwrap();
    if seen.is_missing {
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound",
            "code": 404, "message": "configmaps \"skupper-router-report\" not found"
        });
        return (StatusCode::NOT_FOUND, Json(status));
    }
    let patch: Value = serde_json::from_slice(&body).unwrap();
    for (key, report) in patch["data"].as_object().unwrap() {
        seen.keys.push(key.clone());
        seen.reports
            .push(Report::parse(report.as_str().unwrap()).unwrap());
    }
    seen.paths.push(uri.path().to_owned());
    let metadata = json!({ "name": "skupper-router-report" });
    let answer = json!({ "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata });
    (StatusCode::OK, Json(answer))
}
