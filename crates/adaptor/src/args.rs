//! What was the adaptor told when it started?

use clap::Parser;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Keeps the router beside it at its wanted configuration, credentials first.
#[derive(Clone, Debug, Parser)]
#[command(name = "spanwire-adaptor", version)]
pub(crate) struct Args {
    /// Folder with the mounted credentials and configuration.
    #[arg(
        long,
        env = "SPANWIRE_CONFIG_DIR",
        default_value = "/etc/skupper-router-config"
    )]
    pub(crate) config_dir: PathBuf,

    /// Memory volume that the router reads its TLS files from, at the same path.
    #[arg(
        long,
        env = "SPANWIRE_CERTS_DIR",
        default_value = "/etc/skupper-router-certs"
    )]
    pub(crate) certs_dir: PathBuf,

    /// Where the router is managed.
    #[arg(long, env = "SPANWIRE_MANAGEMENT", default_value = "127.0.0.1:5672")]
    pub(crate) management: String,

    /// Where `/healthz`, `/livez` and `/metrics` are served.
    #[arg(long, env = "SPANWIRE_HEALTH", default_value = "[::]:9191")]
    pub(crate) health: SocketAddr,

    /// This pod's namespace.
    #[arg(long, env = "SKUPPER_NAMESPACE", default_value = "default")]
    pub(crate) namespace: String,

    /// This pod's name.
    #[arg(long, env = "SPANWIRE_POD_NAME", default_value = "unknown")]
    pub(crate) pod_name: String,

    /// This pod's uid.
    #[arg(long, env = "SPANWIRE_POD_UID", default_value = "unknown")]
    pub(crate) pod_uid: String,

    /// Folder with the service account's `token` and `ca.crt`.
    #[arg(
        long,
        env = "SPANWIRE_SERVICE_ACCOUNT_DIR",
        default_value = "/var/run/secrets/kubernetes.io/serviceaccount"
    )]
    pub(crate) service_account_dir: PathBuf,

    /// URL of the API server. Unset, it is made of KUBERNETES_SERVICE_HOST and
    /// KUBERNETES_SERVICE_PORT.
    #[arg(long, env = "SPANWIRE_API_SERVER")]
    pub(crate) api_server: Option<String>,

    /// What is logged: directives as in `info,spanwire_adaptor=debug`.
    #[arg(long, env = "RUST_LOG", default_value = "info")]
    pub(crate) log: String,

    /// As the kubelet sets it.
    #[arg(long, env = "KUBERNETES_SERVICE_HOST", hide = true)]
    pub(crate) api_host: Option<String>,

    /// As the kubelet sets it.
    #[arg(
        long,
        env = "KUBERNETES_SERVICE_PORT",
        default_value = "443",
        hide = true
    )]
    pub(crate) api_port: u16,
}

impl Args {
    /// The API server's URL, if one was told.
    pub(crate) fn api_url(&self) -> Option<String> {
        self.api_server.clone().or_else(|| {
            let host = self.api_host.as_deref().filter(|host| !host.is_empty())?;
            // An IPv6 address needs brackets in a URL.
            let host = if host.contains(':') {
                format!("[{host}]")
            } else {
                host.to_owned()
            };
            Some(format!("https://{host}:{}", self.api_port))
        })
    }
}
