//! Is each link up, and to whom?
//!
//! A connector's own status says `SUCCESS` as soon as it dials, so it is not asked
//! (`facts/router.md` §4). A link is up when a connection that we dialled is open and, on an
//! interior router, the peer is a neighbour of ours: `linkState` of our own node tells a dead peer
//! within three seconds. An edge router has no neighbours; there the connection is all.

use super::Sync;
use crate::clock;
use crate::error::AskRouter;
use crate::management::{Management, PAGE, Row};
use serde_json::Value;
use spanwire_router::entity::{Connector, Entity, EntityId, EntityType, Role};
use spanwire_router::report::LinkReport;
use std::collections::{BTreeMap, BTreeSet};
use tracing::info;

const CONNECTION: &str = "io.skupper.router.connection";
const NODE: &str = "io.skupper.router.router.node";

/// What is asked of connections.
const COLUMNS: [&str; 6] = ["container", "role", "dir", "host", "opened", "sslProto"];

/// The most pages of connections that are looked through.
const MAX_PAGES: i32 = 400;

impl Sync {
    /// Lists the links that are dialled from now on, before anything is known of them.
    pub(super) fn begin_links(&mut self) {
        for connector in self.desired.entities().iter().filter_map(connector) {
            self.links
                .entry(connector.name.clone())
                .or_insert_with(|| LinkReport {
                    since: Some(clock::timestamp()),
                    ..LinkReport::default()
                });
        }
    }

    /// Looks at the links; whether the router still has each connector that it is known to have.
    ///
    /// # Errors
    /// The connection is lost or in doubt.
    pub(super) async fn look(&mut self, router: &mut Management) -> Result<bool, AskRouter> {
        let connectors: Vec<&Connector> = self
            .desired
            .entities()
            .iter()
            .filter_map(connector)
            .collect();
        if connectors.is_empty() {
            self.links.clear();
            return Ok(true);
        }
        let neighbours = if connectors
            .iter()
            .any(|connector| connector.role == Role::InterRouter)
        {
            let columns = ["id", "nextHop", "linkState"];
            neighbours(router.query(NODE, &columns).await?)
        } else {
            BTreeSet::new()
        };
        let mut links: BTreeMap<String, LinkReport> = connectors
            .iter()
            .map(|connector| (connector.name.clone(), LinkReport::default()))
            .collect();
        // A router has a row for every stream that it carries. Links are older than most, so the
        // first page has them.
        for page in 0..MAX_PAGES {
            let rows = router.query_page(CONNECTION, &COLUMNS, page).await?;
            let rows: Vec<Row> = rows.collect();
            for connector in &connectors {
                if let Some(link) = links.get_mut(&connector.name).filter(|link| !link.up)
                    && let Some(found) = link_of(connector, &rows, &neighbours)
                {
                    *link = found;
                }
            }
            self.health.beat();
            if links.values().all(|link| link.up) || usize::try_from(PAGE) != Ok(rows.len()) {
                break;
            }
        }
        let mut is_whole = true;
        if links.values().any(|link| !link.up) {
            let columns = ["name", "connectionMsg"];
            let rows = router
                .query(EntityType::Connector.management_name(), &columns)
                .await?;
            let told = explain(&mut links, rows);
            is_whole = connectors.iter().all(|connector| {
                let id = EntityId::new(EntityType::Connector, &connector.name);
                told.contains(&connector.name) || self.live.get(&id).is_none()
            });
        }
        for (name, link) in &mut links {
            let last = self.links.get(name);
            link.since = match last {
                Some(last) if last.up == link.up => last.since.clone(),
                _ => Some(clock::timestamp()),
            };
            // While the router dials it has nothing to say: what it said last still stands.
            if !link.up && link.message.is_none() {
                link.message = last
                    .filter(|last| !last.up)
                    .and_then(|last| last.message.clone());
            }
            if last.is_some_and(|last| last.up) != link.up {
                info!(
                    link = name,
                    up = link.up,
                    remote = link.remote,
                    "A link changed"
                );
            }
        }
        self.links = links;
        Ok(is_whole)
    }
}

/// Whether the router has not said yet what became of a link.
pub(crate) fn is_dialled(link: &LinkReport) -> bool {
    !link.up && link.message.is_none()
}

/// What is known of a link whose router cannot be asked.
pub(super) fn lose(link: &mut LinkReport) {
    if link.up {
        *link = LinkReport {
            since: Some(clock::timestamp()),
            message: Some("the router cannot be reached".to_owned()),
            ..LinkReport::default()
        };
    }
}

fn connector(entity: &Entity) -> Option<&Connector> {
    match entity {
        Entity::Connector(connector)
            if matches!(connector.role, Role::InterRouter | Role::Edge) =>
        {
            Some(connector)
        }
        _ => None,
    }
}

/// The link of a connector, if one of these connections was dialled to its host and port. Rows
/// carry no connector's name.
fn link_of(
    connector: &Connector,
    connections: &[Row],
    neighbours: &BTreeSet<String>,
) -> Option<LinkReport> {
    let target = format!("{}:{}", connector.host, connector.port);
    let role = match connector.role {
        Role::Edge => "edge",
        _ => "inter-router",
    };
    let is_ours = |row: &&Row| {
        text(row, "dir") == Some("out")
            && text(row, "role") == Some(role)
            && text(row, "host") == Some(&target)
            && row.get("opened").and_then(Value::as_bool) == Some(true)
    };
    let is_up = |row: &Row| {
        let container = text(row, "container").unwrap_or_default();
        connector.role == Role::Edge || neighbours.contains(container)
    };
    let rows: Vec<&Row> = connections.iter().filter(is_ours).collect();
    let up = rows.iter().find(|row| is_up(row));
    let row = up.or(rows.first())?;
    Some(LinkReport {
        up: up.is_some(),
        remote: text(row, "container").map(str::to_owned),
        since: None,
        tls: text(row, "sslProto")
            .filter(|protocol| !protocol.is_empty())
            .map(str::to_owned),
        message: None,
    })
}

/// The ids of the routers next to ours, from our own node's row. A peer's row is no proof: it
/// outlives it by a minute.
fn neighbours(nodes: impl IntoIterator<Item = Row>) -> BTreeSet<String> {
    let own = nodes
        .into_iter()
        .find(|row| text(row, "nextHop") == Some("(self)"));
    match own.as_ref().and_then(|row| row.get("linkState")) {
        Some(Value::Array(ids)) => ids
            .iter()
            .filter_map(|id| id.as_str().map(str::to_owned))
            .collect(),
        _ => BTreeSet::new(),
    }
}

/// Adds what connectors say of their last failure to links that are not up; the names of those that
/// the router has.
fn explain(
    links: &mut BTreeMap<String, LinkReport>,
    connectors: impl IntoIterator<Item = Row>,
) -> BTreeSet<String> {
    let mut told = BTreeSet::new();
    for row in connectors {
        let name = text(&row, "name").unwrap_or_default();
        let link = links.get_mut(name);
        told.insert(name.to_owned());
        if let Some(link) = link.filter(|link| !link.up && link.remote.is_none()) {
            link.message = text(&row, "connectionMsg")
                .filter(|message| !message.is_empty())
                .map(without_number);
        }
    }
    told
}

/// `[C17] what happened` without the connection's number: it is another at each try, and what is
/// reported must rest.
fn without_number(message: &str) -> String {
    let number = message
        .strip_prefix("[C")
        .and_then(|rest| rest.split_once("] "));
    number.map_or(message, |(_, rest)| rest).to_owned()
}

fn text<'a>(row: &'a Row, column: &str) -> Option<&'a str> {
    row.get(column)?.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row(value: Value) -> Row {
        match value {
            Value::Object(row) => row,
            other => panic!("{other}"),
        }
    }

    fn dialled(role: Role) -> Connector {
        let (host, port) = ("west.example.com".to_owned(), 55671);
        Connector {
            name: "west".to_owned(),
            role,
            host,
            port,
            ..Connector::default()
        }
    }

    fn connection(container: &str, changed: Value) -> Row {
        let mut connection = row(json!({
            "container": container, "role": "inter-router", "dir": "out", "opened": true,
            "host": "west.example.com:55671", "sslProto": "TLSv1.3"
        }));
        connection.extend(row(changed));
        connection
    }

    #[test]
    fn a_link_is_up_when_its_peer_is_a_neighbour() {
        let rows = [connection("west-0", json!({}))];
        let neighbour = BTreeSet::from(["west-0".to_owned()]);
        let up = link_of(&dialled(Role::InterRouter), &rows, &neighbour).unwrap();
        assert!(
            up.up && up.remote.as_deref() == Some("west-0") && up.tls.as_deref() == Some("TLSv1.3")
        );
        let connected = link_of(&dialled(Role::InterRouter), &rows, &BTreeSet::new()).unwrap();
        assert!(!connected.up && connected.remote.as_deref() == Some("west-0"));
    }

    #[test]
    fn an_edge_link_is_up_when_it_is_connected() {
        let rows = [connection("west-0", json!({ "role": "edge" }))];
        assert!(
            link_of(&dialled(Role::Edge), &rows, &BTreeSet::new())
                .unwrap()
                .up
        );
        assert_eq!(
            link_of(&dialled(Role::InterRouter), &rows, &BTreeSet::new()),
            None
        );
    }

    #[test]
    fn other_connections_are_not_taken_for_the_link() {
        let neighbours = BTreeSet::from(["west-0".to_owned()]);
        for other in [
            json!({ "dir": "in" }),
            json!({ "role": "inter-router-data" }),
            json!({ "role": "normal" }),
            json!({ "opened": false }),
            json!({ "host": "west.example.com:5567" }),
        ] {
            let rows = [connection("west-0", other)];
            assert_eq!(
                link_of(&dialled(Role::InterRouter), &rows, &neighbours),
                None
            );
        }
    }

    #[test]
    fn any_of_several_connections_will_do() {
        let rows = [
            connection("west-1", json!({})),
            connection("west-0", json!({})),
        ];
        let neighbours = BTreeSet::from(["west-0".to_owned()]);
        let link = link_of(&dialled(Role::InterRouter), &rows, &neighbours).unwrap();
        assert!(link.up && link.remote.as_deref() == Some("west-0"));
    }

    #[test]
    fn neighbours_are_those_of_our_own_node() {
        let nodes = [
            row(json!({ "id": "west-0", "linkState": ["far-0"] })),
            row(json!({ "id": "east-0", "nextHop": "(self)", "linkState": ["west-0", "north-0"] })),
        ];
        assert_eq!(
            neighbours(nodes).into_iter().collect::<Vec<_>>(),
            ["north-0", "west-0"]
        );
        assert!(neighbours([]).is_empty());
    }

    #[test]
    fn an_error_is_told_without_the_number_of_the_connection() {
        let mut links = BTreeMap::from([("west".to_owned(), LinkReport::default())]);
        let rows = [row(
            json!({ "name": "west", "connectionMsg": "[C17] proton:io Connection refused" }),
        )];
        let told = explain(&mut links, rows);
        assert_eq!(told, BTreeSet::from(["west".to_owned()]));
        assert_eq!(
            links["west"].message.as_deref(),
            Some("proton:io Connection refused")
        );
        assert_eq!(without_number("[Cx"), "[Cx");
    }
}
