//! What does a Site ask for, and does it make sense?

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use spanwire_api::Site;
use spanwire_api::condition::CONFIGURED;
use spanwire_api::site::reason;

use crate::env::Env;
use crate::plan::Verdict;
use crate::site::logging;
use crate::{labels, names};

/// Settings that something here reads.
const KNOWN_SETTINGS: [&str; 4] = [
    "router-logging",
    "router-data-connection-count",
    "disable-anti-affinity",
    "ingressClassName",
];

/// A spec that makes sense.
#[derive(Debug)]
pub(crate) struct Shape<'a> {
    /// Whose it is.
    pub(crate) site: &'a Site,
    /// The Site's name.
    pub(crate) name: &'a str,
    /// The Site's namespace.
    pub(crate) namespace: &'a str,
    /// The Site's uid, which is the site's id in the network.
    pub(crate) uid: &'a str,
    /// Whether its router is a leaf.
    pub(crate) edge: bool,
    /// Whether it has two routers.
    pub(crate) ha: bool,
    /// The access type of the RouterAccess to make, empty for the operator's default; absent: make none.
    pub(crate) link_access: Option<&'a str>,
    /// The Secret of the CA that signs where nothing else is named.
    pub(crate) issuer: &'a str,
    /// The ServiceAccount of the router pods.
    pub(crate) service_account: &'a str,
    /// What the routers log: module and levels.
    pub(crate) logging: Vec<(String, String)>,
    /// How many data connections a link has.
    pub(crate) data_connections: Option<&'a str>,
    /// Whether two routers would rather be on two nodes.
    pub(crate) spread: bool,
    /// What is not done, though it was asked for.
    pub(crate) remarks: Vec<String>,
}

impl<'a> Shape<'a> {
    /// Reads the spec.
    pub(crate) fn check(site: &'a Site, env: &Env<'_>) -> Result<Self, Verdict> {
        let spec = &site.spec;
        let mut remarks = Vec::new();
        let edge = is_edge(site);
        if spec.edge.is_some_and(|edge| {
            spec.router_mode
                .as_deref()
                .is_some_and(|mode| !mode.is_empty() && (mode == "edge") != edge)
        }) {
            remarks.push("spec.edge and spec.routerMode differ, and edge was taken".to_owned());
        }
        let ha = spec.ha.unwrap_or_default();
        if edge && ha {
            let message = "Edge sites cannot have HA enabled";
            return Err(Verdict::error(CONFIGURED, reason::EDGE_WITH_HA, message));
        }
        let mut link_access = access_type(spec.link_access.as_deref(), env)?;
        if edge && link_access.take().is_some() {
            remarks.push("spec.linkAccess is ignored, as an edge site accepts no links".to_owned());
        }
        let logging = spec
            .settings
            .get("router-logging")
            .map(|text| logging::parse(text));
        let logging = logging.transpose().unwrap_or_else(|fault| {
            remarks.push(format!("setting router-logging is ignored: {fault}"));
            None
        });
        let data_connections = spec.settings.get("router-data-connection-count");
        let data_connections = data_connections.filter(|count| {
            let is_good = *count == "auto" || count.parse::<u8>().is_ok();
            if !is_good {
                remarks.push(format!(
                    "setting router-data-connection-count is ignored: \"{count}\" is neither \"auto\" nor a number up to 255"
                ));
            }
            is_good
        });
        for setting in spec.settings.keys() {
            if !KNOWN_SETTINGS.contains(&setting.as_str()) {
                remarks.push(format!("setting {setting} is ignored"));
            }
        }
        let name = site.metadata.name.as_deref().unwrap_or_default();
        let no_spread = spec
            .settings
            .get("disable-anti-affinity")
            .is_some_and(|text| is_true(text));
        Ok(Self {
            site,
            name,
            namespace: site.metadata.namespace.as_deref().unwrap_or_default(),
            uid: site.metadata.uid.as_deref().unwrap_or_default(),
            edge,
            ha,
            link_access,
            issuer: default_issuer(site),
            service_account: named(spec.service_account.as_deref()).unwrap_or(names::ROUTER),
            logging: logging.unwrap_or_default(),
            data_connections: data_connections.map(String::as_str),
            spread: !no_spread,
            remarks,
        })
    }

    /// The names of its routers.
    pub(crate) fn groups(&self) -> &'static [&'static str] {
        names::groups(self.ha)
    }

    /// Metadata of a child of the Site.
    pub(crate) fn metadata(&self, name: &str) -> ObjectMeta {
        ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(self.namespace.to_owned()),
            labels: Some(labels::ours()),
            owner_references: Some(vec![names::owner(self.site)]),
            ..ObjectMeta::default()
        }
    }
}

/// Whether a Site asks to be a leaf: the newer spelling wins.
pub(crate) fn is_edge(site: &Site) -> bool {
    site.spec
        .edge
        .unwrap_or(site.spec.router_mode.as_deref() == Some("edge"))
}

/// The names of a Site's routers.
pub(crate) fn groups(site: &Site) -> &'static [&'static str] {
    names::groups(site.spec.ha.unwrap_or_default() && !is_edge(site))
}

/// Whether a Site asks for a RouterAccess of its own.
pub(crate) fn wants_access(site: &Site) -> bool {
    !matches!(site.spec.link_access.as_deref(), None | Some("" | "none")) && !is_edge(site)
}

/// The Secret of the CA that signs for a Site where nothing else is named. Upstream falls back to the last one that
/// was ever named; here a spec means the same whatever was before it.
pub(crate) fn default_issuer(site: &Site) -> &str {
    named(site.spec.default_issuer.as_deref()).unwrap_or(names::SITE_CA)
}

fn named(name: Option<&str>) -> Option<&str> {
    name.filter(|name| !name.is_empty())
}

fn access_type<'a>(asked: Option<&'a str>, env: &Env<'_>) -> Result<Option<&'a str>, Verdict> {
    match asked {
        None | Some("" | "none") => Ok(None),
        Some("default") => Ok(Some("")),
        Some(asked)
            if env
                .config
                .enabled_access_types
                .iter()
                .any(|known| known == asked) =>
        {
            Ok(Some(asked))
        }
        Some(asked) => Err(Verdict::error(
            CONFIGURED,
            reason::UNSUPPORTED_ACCESS_TYPE,
            format!(
                "Unsupported value for LinkAccess: {asked}; this operator knows none, default, {}",
                env.config.enabled_access_types.join(", ")
            ),
        )),
    }
}

/// As Go reads a boolean, for upstream does (`strconv.ParseBool`).
fn is_true(text: &str) -> bool {
    matches!(text, "1" | "t" | "T" | "true" | "TRUE" | "True")
}
