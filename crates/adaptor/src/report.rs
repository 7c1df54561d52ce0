//! How does the operator learn how things stand?
//!
//! One key of one ConfigMap is patched when the report has changed, at most once a second. The API
//! server may be away for any length of time, and the ConfigMap not be there yet: nothing waits for
//! this, and it tries for ever.

use crate::args::Args;
use crate::error::WriteReport;
use crate::sync::is_dialled;
use axum::http::uri::InvalidUri;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use kube::config::AuthInfo;
use kube::{Api, Client, Config};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::json;
use spanwire_router::report::{REPORT_CONFIG_MAP, Report, report_key};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{debug, info, warn};

/// A call takes no longer.
const DEADLINE: Duration = Duration::from_secs(10);

/// Two writes are at least this far apart.
const APART: Duration = Duration::from_secs(1);

/// How long the first word of a new link is awaited, so that it goes with the news of the link itself.
const FIRST_WORD: Duration = Duration::from_millis(300);

/// Writes reports.
#[derive(Clone)]
pub(crate) struct Reporter {
    url: String,
    service_account: PathBuf,
    namespace: String,
    key: String,
}

impl Reporter {
    /// One for this pod, if it was told where the API server is.
    pub(crate) fn new(args: &Args) -> Option<Self> {
        Some(Self {
            url: args.api_url()?,
            service_account: args.service_account_dir.clone(),
            namespace: args.namespace.clone(),
            key: report_key(&args.pod_name, &args.pod_uid),
        })
    }

    /// Writes each new report, for ever.
    pub(crate) async fn run(self, mut reports: watch::Receiver<Report>) {
        let mut client = None;
        let mut written = Report::default().to_json();
        let mut failures = 0;
        loop {
            // What is in progress is not worth one of the few writes if it ends soon.
            let _ = timeout(APART, reports.wait_for(|report| report.settled)).await;
            let is_told = |report: &Report| !report.links.values().any(is_dialled);
            let _ = timeout(FIRST_WORD, reports.wait_for(is_told)).await;
            let report = reports.borrow_and_update().to_json();
            if written == report {
                if reports.changed().await.is_err() {
                    return;
                }
                continue;
            }
            let next = Instant::now() + APART;
            match self.write(&mut client, &report).await {
                Ok(()) => {
                    if failures > 0 {
                        info!(failures, "Wrote the report again");
                    }
                    debug!(bytes = report.len(), "Wrote the report");
                    failures = 0;
                    written = report;
                    sleep_until(next).await;
                }
                Err(error) => {
                    if failures == 0 {
                        warn!(%error, "Could not write the report; trying for ever");
                    }
                    // Whatever was wrong may be the credential or the CA: both are read anew.
                    client = None;
                    failures += 1;
                    sleep(crate::sync::pause(failures).max(APART)).await;
                }
            }
        }
    }

    async fn write(&self, client: &mut Option<Client>, report: &str) -> Result<(), WriteReport> {
        let client = match client {
            Some(client) => client.clone(),
            None => client.insert(self.client()?).clone(),
        };
        let config_maps: Api<ConfigMap> = Api::namespaced(client, &self.namespace);
        let patch = Patch::Merge(json!({ "data": { &self.key: report } }));
        let params = PatchParams::default();
        let call = config_maps.patch_metadata(REPORT_CONFIG_MAP, &params, &patch);
        match timeout(DEADLINE, call).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(WriteReport::PatchReport(error)),
            Err(_) => Err(WriteReport::Await(DEADLINE)),
        }
    }

    /// A client that trusts the mounted CA and sends the mounted token, which it reads again as it
    /// is renewed.
    fn client(&self) -> Result<Client, WriteReport> {
        let url = self
            .url
            .parse()
            .map_err(|error: InvalidUri| WriteReport::ParseUrl {
                url: self.url.clone(),
                message: error.to_string(),
            })?;
        let mut config = Config::new(url);
        config.default_namespace.clone_from(&self.namespace);
        config.connect_timeout = Some(DEADLINE);
        if self.url.starts_with("https:") {
            config.root_cert = Some(self.authorities()?);
            let token = self.service_account.join("token");
            config.auth_info = AuthInfo {
                token_file: Some(token.to_string_lossy().into_owned()),
                ..AuthInfo::default()
            };
        }
        Client::try_from(config).map_err(WriteReport::MakeClient)
    }

    fn authorities(&self) -> Result<Vec<Vec<u8>>, WriteReport> {
        let path = self.service_account.join("ca.crt");
        let pem = fs::read(&path).map_err(|source| WriteReport::ReadFile {
            path: path.clone(),
            source,
        })?;
        let unreadable = |message: String| WriteReport::ReadCa {
            path: path.clone(),
            message,
        };
        let authorities: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem)
            .map(|der| der.map(|der| der.to_vec()))
            .collect();
        match authorities {
            Ok(authorities) if authorities.is_empty() => Err(unreadable("it is empty".to_owned())),
            Ok(authorities) => Ok(authorities),
            Err(error) => Err(unreadable(error.to_string())),
        }
    }
}
