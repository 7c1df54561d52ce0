//! What network came of it? Sites, links, grants and tokens, as their status tells them.

use std::time::Duration;

use anyhow::Result;
use serde_json::Value;

use crate::audit::AuditLog;
use crate::kubectl::{Kubectl, has_condition, text};
use crate::tally;

const KINDS: &str = "sites.skupper.io,links.skupper.io,routeraccesses.skupper.io,\
     accessgrants.skupper.io,accesstokens.skupper.io";

/// What some namespaces have become together.
#[derive(Debug, Default)]
pub struct Topology {
    pub sites: Vec<Site>,
    pub links: Vec<Link>,
    pub tokens: Vec<Token>,
    /// Places that cannot be linked to yet, and why.
    closed: Vec<String>,
}

/// A site, and how far what belongs to it has come.
#[derive(Debug)]
pub struct Site {
    pub namespace: String,
    pub name: String,
    is_ready: bool,
    message: String,
    /// `host:port` that other sites reach it at.
    endpoint: Option<String>,
    grants_ready: usize,
    tokens_redeemed: usize,
    links_up: usize,
}

/// A link, from the site that dials.
#[derive(Debug)]
pub struct Link {
    pub name: String,
    pub namespace: String,
    pub site: String,
    /// The site at the other end, if an adaptor there says that it is its router.
    pub remote: Option<String>,
    pub cost: u64,
    pub is_up: bool,
    /// As the router writes it: `TLSv1.3`.
    pub tls: Option<String>,
    pub message: String,
}

/// Who redeemed what.
#[derive(Debug)]
pub struct Token {
    pub name: String,
    pub site: String,
    pub is_redeemed: bool,
    pub message: String,
    /// The grant's name, its site, and how many of how many claims it has given.
    pub grant: Option<(String, String, u64, u64)>,
}

impl Topology {
    /// Reads what is in `namespaces`, one site in each.
    pub fn read(kubectl: &Kubectl, namespaces: &[&str]) -> Result<Topology> {
        let mut objects = Vec::new();
        let mut routers = Vec::new();
        for namespace in namespaces {
            objects.extend(kubectl.items(&[KINDS, "--namespace", namespace])?);
            for (pod, report) in tally::reports(kubectl, namespace)? {
                routers.push(((*namespace).to_owned(), pod, report));
            }
        }
        let of = |kind: &'static str| objects.iter().filter(move |object| object["kind"] == kind);
        let site_of = |namespace: &str| {
            let site = of("Site").find(|site| text(&site["metadata"]["namespace"]) == namespace);
            site.map_or(namespace, |site| text(&site["metadata"]["name"]))
                .to_owned()
        };
        let links = of("Link").map(|link| {
            let (namespace, name) = (
                text(&link["metadata"]["namespace"]),
                text(&link["metadata"]["name"]),
            );
            let seen = routers.iter().filter(|router| router.0 == namespace);
            let seen = seen
                .flat_map(|router| &router.2.links)
                .find(|(connector, _)| connector.as_str() == name);
            let remote = seen.and_then(|(_, seen)| seen.remote.as_deref());
            let remote = routers
                .iter()
                .find(|router| remote.is_some() && router.2.router.id.as_deref() == remote);
            Link {
                name: name.to_owned(),
                namespace: namespace.to_owned(),
                site: site_of(namespace),
                remote: remote.map(|router| site_of(&router.0)),
                cost: link["spec"]["cost"].as_u64().unwrap_or(1),
                is_up: has_condition(link, "Operational"),
                tls: seen.and_then(|(_, seen)| seen.tls.clone()),
                message: text(&link["status"]["message"]).to_owned(),
            }
        });
        let tokens = of("AccessToken").map(|token| {
            let uid = text(&token["spec"]["url"])
                .rsplit('/')
                .next()
                .unwrap_or_default();
            let grant = of("AccessGrant").find(|grant| text(&grant["metadata"]["uid"]) == uid);
            Token {
                name: text(&token["metadata"]["name"]).to_owned(),
                site: site_of(text(&token["metadata"]["namespace"])),
                is_redeemed: has_condition(token, "Redeemed"),
                message: text(&token["status"]["message"]).to_owned(),
                grant: grant.map(|grant| {
                    let count = |value: &Value| value.as_u64().unwrap_or_default();
                    (
                        text(&grant["metadata"]["name"]).to_owned(),
                        site_of(text(&grant["metadata"]["namespace"])),
                        count(&grant["status"]["redemptions"]),
                        count(&grant["spec"]["redemptionsAllowed"]).max(1),
                    )
                }),
            }
        });
        let closed = of("RouterAccess").filter(|access| !has_condition(access, "Ready"));
        let closed = closed.map(|access| {
            let (name, message) = (&access["metadata"]["name"], &access["status"]["message"]);
            format!("access {} is not ready: {}", text(name), text(message))
        });
        let sites = of("Site").map(|site| {
            let namespace = text(&site["metadata"]["namespace"]);
            let count = |kind: &'static str, condition: &str| {
                let all =
                    of(kind).filter(|object| text(&object["metadata"]["namespace"]) == namespace);
                all.filter(|object| has_condition(object, condition))
                    .count()
            };
            let endpoint = &site["status"]["endpoints"][0];
            Site {
                namespace: namespace.to_owned(),
                name: text(&site["metadata"]["name"]).to_owned(),
                is_ready: has_condition(site, "Ready"),
                message: text(&site["status"]["message"]).to_owned(),
                endpoint: endpoint["host"]
                    .as_str()
                    .map(|host| format!("{host}:{}", text(&endpoint["port"]))),
                grants_ready: count("AccessGrant", "Ready"),
                tokens_redeemed: count("AccessToken", "Redeemed"),
                links_up: count("Link", "Operational"),
            }
        });
        Ok(Topology {
            sites: sites.collect(),
            links: links.collect(),
            tokens: tokens.collect(),
            closed: closed.collect(),
        })
    }

    /// Whether there is a link, and everything is as it should be.
    pub fn is_linked(&self) -> bool {
        !self.links.is_empty()
            && self.links.iter().all(|link| link.is_up)
            && self.sites.iter().all(|site| site.is_ready)
            && self.tokens.iter().all(|token| token.is_redeemed)
    }

    /// What is not as it should be, a line each.
    pub fn complaints(&self) -> String {
        let sites = self.sites.iter().filter(|site| !site.is_ready);
        let sites = sites.map(|site| format!("site {} is not ready: {}", site.name, site.message));
        let tokens = self.tokens.iter().filter(|token| !token.is_redeemed);
        let tokens =
            tokens.map(|token| format!("token {} is not redeemed: {}", token.name, token.message));
        let links = self.links.iter().filter(|link| !link.is_up);
        let links = links.map(|link| {
            format!(
                "link {} in {} is not up: {}",
                link.name, link.namespace, link.message
            )
        });
        let none = self.links.is_empty().then(|| "there is no link".to_owned());
        sites
            .chain(self.closed.iter().cloned())
            .chain(tokens)
            .chain(links)
            .chain(none)
            .collect::<Vec<_>>()
            .join("\n")
    }
}

impl Site {
    /// What it has come to, in a few words.
    pub fn summary(&self) -> String {
        let mut parts = vec![
            if self.is_ready {
                "Site ready"
            } else {
                "Site not ready"
            }
            .to_owned(),
        ];
        parts.extend(
            self.endpoint
                .as_ref()
                .map(|endpoint| format!("access {endpoint}")),
        );
        for (count, what) in [
            (self.grants_ready, "grant ready"),
            (self.tokens_redeemed, "token redeemed"),
            (self.links_up, "link up"),
        ] {
            match count {
                0 => (),
                1 => parts.push(what.to_owned()),
                _ => parts.push(format!("{count} × {what}")),
            }
        }
        parts.join(" · ")
    }
}

/// From the first Site that was made in a namespace to our last write of a status there.
pub fn settling_time(log: &AuditLog, namespace: &str) -> Option<Duration> {
    let requests = log.since(AuditLog::START).ok()?;
    let mut there = requests
        .iter()
        .filter(|request| request.object_ref.namespace == namespace && request.is_write());
    let first = there
        .clone()
        .find(|request| request.object_ref.resource == "sites")?;
    let last =
        there.rfind(|request| request.is_ours() && request.object_ref.subresource == "status")?;
    first.until(last)
}
