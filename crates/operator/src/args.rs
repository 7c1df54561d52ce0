//! What was typed, and what is meant?

use std::net::SocketAddr;

use anyhow::ensure;
use clap::{Args, Parser, Subcommand};
use k8s_openapi::jiff::SignedDuration;
use spanwire_plan::env::Config;

use crate::stores::Scope;

/// Access types that this version can realise.
const ACCESS_TYPES: [&str; 3] = ["local", "loadbalancer", "nodeport"];

/// Networks of sites and links, for Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "spanwire", version, about)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs the operator.
    Operator(Box<OperatorArgs>),
    /// Prints the CustomResourceDefinitions as YAML.
    Crds,
    /// Prints the version.
    Version,
}

/// The operator's flags. Names and environment variables are upstream's where upstream has them.
#[derive(Clone, Debug, Args)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the command line"
)]
pub struct OperatorArgs {
    /// The operator's own namespace.
    #[arg(long, env = "NAMESPACE", default_value = "spanwire")]
    pub namespace: String,
    /// The operator's own name: the Deployment that runs it.
    #[arg(long, env = "CONTROLLER_NAME", default_value = "spanwire-controller")]
    pub name: String,
    /// This replica's name, unique among them.
    #[arg(long, env = "HOSTNAME", default_value = "spanwire-controller-0")]
    pub identity: String,
    /// Look at this namespace only; empty: at all.
    #[arg(long, env = "WATCH_NAMESPACE", default_value = "")]
    pub watch_namespace: String,
    /// Control only namespaces whose ConfigMap `skupper` names this operator.
    #[arg(long, env = "REQUIRE_EXPLICIT_CONTROL")]
    pub require_explicit_control: bool,
    /// Access types that may be asked for.
    #[arg(
        long,
        env = "SKUPPER_ENABLED_ACCESS_TYPES",
        value_delimiter = ',',
        default_value = "local,loadbalancer,nodeport"
    )]
    pub enabled_access_types: Vec<String>,
    /// What an absent access type means; empty: loadbalancer if it is enabled, else the first enabled type.
    #[arg(long, env = "SKUPPER_DEFAULT_ACCESS_TYPE", default_value = "")]
    pub default_access_type: String,
    /// Host under which node ports are reached.
    #[arg(long, env = "SKUPPER_CLUSTER_HOST", default_value = "")]
    pub cluster_host: String,
    /// Image of the routers.
    #[arg(long, env = "SKUPPER_ROUTER_IMAGE")]
    pub router_image: Option<String>,
    /// Image of the adaptors beside the routers.
    #[arg(long, env = "SKUPPER_KUBE_ADAPTOR_IMAGE")]
    pub adaptor_image: Option<String>,
    /// Serve AccessGrants.
    #[arg(long, env = "SKUPPER_ENABLE_GRANTS", default_value_t = true, action = clap::ArgAction::Set)]
    pub enable_grants: bool,
    /// Port of the grant server.
    #[arg(long, env = "SKUPPER_GRANT_SERVER_PORT", default_value_t = 9090)]
    pub grant_server_port: u16,
    /// Lifetime of certificates that are issued.
    #[arg(long, env = "SPANWIRE_CERTIFICATE_LIFETIME", default_value = "43800h")]
    pub certificate_lifetime: SignedDuration,
    /// Lifetime of CAs that are made.
    #[arg(long, env = "SPANWIRE_CA_LIFETIME", default_value = "87600h")]
    pub ca_lifetime: SignedDuration,
    /// Make RSA-2048 keys rather than P-256.
    #[arg(long, env = "SPANWIRE_RSA")]
    pub rsa: bool,
    /// Where health and metrics are served.
    #[arg(long, env = "SKUPPER_METRICS_ADDRESS", default_value = "[::]:9000")]
    pub metrics_address: SocketAddr,
    /// Logs as `text` or `json`.
    #[arg(long, env = "SPANWIRE_LOG_FORMAT", default_value = "text")]
    pub log_format: String,
    /// What is logged: a level, or finer by module, as in `info,spanwire_operator=debug`.
    #[arg(long, env = "RUST_LOG", default_value = "info,kube_runtime=warn")]
    pub log_filter: String,
    /// Shifts the clock of this machine, for tests.
    #[arg(long, hide = true, default_value = "0s")]
    pub clock_offset: SignedDuration,
    /// Lets tokens name hosts on this machine, for tests.
    #[arg(long, hide = true)]
    pub allow_loopback_tokens: bool,
}

impl OperatorArgs {
    /// Where to look.
    pub fn scope(&self) -> Scope {
        if self.watch_namespace.is_empty() {
            Scope::Cluster
        } else {
            Scope::Namespace(self.watch_namespace.clone())
        }
    }

    /// What plans depend on; an error where the flags do not make sense together.
    pub fn config(&self) -> anyhow::Result<Config> {
        let not_empty = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        for kind in &self.enabled_access_types {
            ensure!(
                ACCESS_TYPES.contains(&kind.as_str()),
                "access type {kind:?} in --enabled-access-types is not one of {ACCESS_TYPES:?}"
            );
        }
        let default = not_empty(&self.default_access_type);
        if let Some(default) = &default {
            ensure!(
                self.enabled_access_types.contains(default),
                "--default-access-type {default:?} is not among --enabled-access-types {:?}",
                self.enabled_access_types
            );
        }
        let base = Config::default();
        Ok(Config {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            explicit_control: self.require_explicit_control,
            enabled_access_types: self.enabled_access_types.clone(),
            default_access_type: default,
            cluster_host: not_empty(&self.cluster_host),
            router_image: self.router_image.clone().unwrap_or(base.router_image),
            adaptor_image: self.adaptor_image.clone().unwrap_or(base.adaptor_image),
            ca_seconds: seconds("--ca-lifetime", self.ca_lifetime)?,
            leaf_seconds: seconds("--certificate-lifetime", self.certificate_lifetime)?,
            rsa: self.rsa,
            grants: self.enable_grants,
            grant_port: i32::from(self.grant_server_port),
            version: base.version,
            pull_policy: base.pull_policy,
        })
    }
}

fn seconds(flag: &str, lifetime: SignedDuration) -> anyhow::Result<i64> {
    let seconds = lifetime.as_secs();
    ensure!(seconds > 0, "{flag} has to be a positive time");
    Ok(seconds)
}
