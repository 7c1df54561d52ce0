//! What does the network look like? A line a link, and who redeemed what.

use spanwire_e2e::topology::{Link, Token, Topology};

/// The picture, indented, without a line's end.
pub(crate) fn draw(topology: &Topology) -> String {
    let width = topology
        .sites
        .iter()
        .map(|site| site.name.chars().count())
        .max()
        .unwrap_or_default();
    let linked = |name: &str| {
        topology
            .links
            .iter()
            .any(|link| link.site == name || link.remote.as_deref() == Some(name))
    };
    let links = topology.links.iter().map(|link| draw_link(link, width));
    let alone = topology.sites.iter().filter(|site| !linked(&site.name));
    let alone = alone.map(|site| format!("   {:width$}  ○", site.name));
    let tokens = topology.tokens.iter().map(draw_token);
    links
        .chain(alone)
        .chain(tokens)
        .collect::<Vec<_>>()
        .join("\n")
}

fn draw_link(link: &Link, width: usize) -> String {
    let cost = format!("cost {}", link.cost);
    let state = if link.is_up { "up" } else { "down" };
    let facts = link
        .tls
        .as_deref()
        .map(tls)
        .into_iter()
        .chain([cost, state.to_owned()]);
    let facts = facts.collect::<Vec<_>>().join(" · ");
    let (stroke, end) = if link.is_up {
        ("━━━", "●")
    } else {
        ("╌╌╌", "○")
    };
    let remote = link.remote.as_deref().unwrap_or("?");
    format!(
        "   {:width$}  ●{stroke} {facts} {stroke}{end}  {remote}",
        link.site
    )
}

fn draw_token(token: &Token) -> String {
    let Token {
        name,
        site,
        is_redeemed,
        message,
        grant,
    } = token;
    if !is_redeemed {
        return format!("   {site} has not redeemed {name}: {message}");
    }
    match grant {
        Some((grant, from, given, of)) => {
            format!("   {site} redeemed {name} · {grant} of {from} gave {given} of {of}")
        }
        None => format!("   {site} redeemed {name}"),
    }
}

/// `TLSv1.3` as a person writes it.
fn tls(version: &str) -> String {
    version.replace("TLSv", "TLS ")
}
