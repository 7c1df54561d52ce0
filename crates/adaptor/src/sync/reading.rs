//! What does the router have?
//!
//! All of it is asked for when a connection is new, when something was refused, and now and then;
//! after a few changes, only what was changed.

use super::Sync;
use crate::error::AskRouter;
use crate::management::{Management, entity};
use crate::telemetry::Health;
use serde_json::Value;
use spanwire_router::diff::{Live, is_managed};
use spanwire_router::entity::{Entity, EntityId, EntityType};
use std::collections::BTreeSet;

/// The types of entities that a pass may change.
const TYPES: [EntityType; 3] = [
    EntityType::SslProfile,
    EntityType::Connector,
    EntityType::Listener,
];

/// The most entities that are read back one by one. For more it takes fewer questions to ask for all.
const MAX_READS: usize = 16;

/// What the router has; of the types in `whole`, with all attributes. A router does not answer a
/// question that names an attribute it lacks: others are had by asking for all.
async fn read(
    router: &mut Management,
    whole: &BTreeSet<EntityType>,
    health: &Health,
) -> Result<Live, AskRouter> {
    let mut entities = Vec::new();
    for entity_type in TYPES {
        health.beat();
        let columns = if whole.contains(&entity_type) {
            &[]
        } else {
            entity_type.fields()
        };
        let rows = router.query(entity_type.management_name(), columns).await?;
        entities.extend(rows.filter_map(|row| entity(entity_type, row)));
    }
    Ok(Live::new(entities))
}

impl Sync {
    /// Asks for all that the router has.
    ///
    /// # Errors
    /// The connection is lost or in doubt.
    pub(super) async fn read_live(&mut self, router: &mut Management) -> Result<(), AskRouter> {
        // What was known goes first: there is no need of both.
        self.knows_live = false;
        self.live = Live::default();
        self.whole = self.wholly_wanted();
        self.live = read(router, &self.whole, &self.health).await?;
        self.record.keep(&self.live);
        self.has_ours = self.live.iter().any(|(id, _)| is_managed(id));
        self.doubt();
        self.knows_live = true;
        Ok(())
    }

    /// Asks what became of changes.
    pub(super) async fn read_back(
        &mut self,
        router: &mut Management,
        changed: BTreeSet<EntityId>,
    ) -> Result<(), AskRouter> {
        if !self.knows_live || changed.len() > MAX_READS {
            return self.read_live(router).await;
        }
        for id in changed {
            let name = Value::from(id.name.as_str());
            match self.health.during(router.read(&id)).await {
                Ok(None) => self.live.learn(id, None),
                Ok(Some(row)) if row.get("name") == Some(&name) => {
                    let live = entity(id.entity_type, row);
                    self.live.learn(id, live);
                }
                // Something else than was asked for.
                Ok(Some(_)) | Err(AskRouter::Refuse { .. } | AskRouter::ReadReply(_)) => {
                    return self.read_live(router).await;
                }
                Err(error) => return Err(error),
            }
        }
        self.doubt();
        Ok(())
    }

    /// The types of which somebody wants attributes that are not asked for otherwise.
    pub(super) fn wholly_wanted(&self) -> BTreeSet<EntityType> {
        let entities = self.desired.entities().iter();
        entities
            .filter(|entity| !entity.other().is_empty())
            .map(Entity::entity_type)
            .filter(|entity_type| TYPES.contains(entity_type))
            .collect()
    }

    /// Marks what the router shows and is not known to have accepted.
    fn doubt(&mut self) {
        let doubted = self.record.doubted(&self.live);
        self.live = std::mem::take(&mut self.live).doubting(doubted);
    }
}
