//! What was refused, and when is each tried again?
//!
//! Every entity waits by itself, with a pause that doubles up to a cap; one that is wanted
//! otherwise than it was refused does not wait at all.

use serde_json::Value;
use spanwire_router::entity::{Entity, EntityId};
use spanwire_router::report::Refused;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;
use tracing::warn;

/// The first pause.
const FIRST: Duration = Duration::from_millis(500);

/// The longest.
const LONGEST: Duration = Duration::from_secs(30);

/// How long something is left alone that is done no better by trying again.
const SHELVED: Duration = Duration::from_mins(10);

/// What was refused: an entity, in one form.
type Attempt = (EntityId, String);

/// The form in which the removal of an entity is refused.
pub(crate) const REMOVAL: &str = "removal";

struct Refusal {
    reason: &'static str,
    message: String,
    failures: u32,
    due: Instant,
}

/// The form of an entity, by which it is told whether the same was refused before. Ordinals are no
/// part of it: they are counted up with each try.
pub(crate) fn form(entity: &Entity) -> String {
    let mut attributes = entity.attributes();
    attributes.retain(|name, _| name != "ordinal" && name != "oldestValidOrdinal");
    Value::Object(attributes).to_string()
}

/// All that was refused and not since accepted or given up.
#[derive(Default)]
pub(crate) struct Refusals {
    attempts: BTreeMap<Attempt, Refusal>,
}

impl Refusals {
    /// Notes a refusal of an entity in this form.
    pub(crate) fn note(
        &mut self,
        id: EntityId,
        form: String,
        reason: &'static str,
        message: String,
    ) {
        let key = (id, form);
        let last = self.attempts.get(&key);
        if last.is_none_or(|last| last.message != message) {
            warn!(entity = %key.0, reason, error = message, "The router does not have what is wanted");
        }
        let failures = last.map_or(0, |last| last.failures).saturating_add(1);
        let due = Instant::now() + pause(failures);
        self.attempts.insert(
            key,
            Refusal {
                reason,
                message,
                failures,
                due,
            },
        );
    }

    /// Notes something that is not worth another try soon.
    pub(crate) fn shelve(
        &mut self,
        id: EntityId,
        form: String,
        reason: &'static str,
        message: String,
    ) {
        let due = Instant::now() + SHELVED;
        self.attempts.insert(
            (id, form),
            Refusal {
                reason,
                message,
                failures: 1,
                due,
            },
        );
    }

    /// Whether nothing was refused.
    pub(crate) fn is_empty(&self) -> bool {
        self.attempts.is_empty()
    }

    /// Whether an entity was refused in any form.
    pub(crate) fn has(&self, id: &EntityId) -> bool {
        let from = (id.clone(), String::new());
        self.attempts
            .range(from..)
            .next()
            .is_some_and(|((refused, _), _)| refused == id)
    }

    /// Whether an entity in this form has to wait at this time.
    pub(crate) fn is_waiting(&self, id: &EntityId, form: &str, now: Instant) -> bool {
        self.attempts
            .get(&(id.clone(), form.to_owned()))
            .is_some_and(|refusal| refusal.due > now)
    }

    /// Forgets an entity: it was accepted, or what it needs has changed.
    pub(crate) fn forget(&mut self, id: &EntityId) {
        self.attempts.retain(|(refused, _), _| refused != id);
    }

    /// Keeps only those that are still wanted.
    pub(crate) fn keep(&mut self, is_wanted: impl Fn(&EntityId, &str) -> bool) {
        self.attempts.retain(|(id, form), _| is_wanted(id, form));
    }

    /// Forgets what was due before this pass and was not refused again: it was accepted, or is not
    /// needed.
    pub(crate) fn expire(&mut self, begun: Instant) {
        self.attempts.retain(|_, refusal| refusal.due > begun);
    }

    /// Forgets everything: another router, other answers.
    pub(crate) fn clear(&mut self) {
        self.attempts.clear();
    }

    /// When the next one is due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.attempts.values().map(|refusal| refusal.due).min()
    }

    /// For the report.
    pub(crate) fn refused(&self) -> impl Iterator<Item = Refused> {
        self.attempts.iter().map(|((id, _), refusal)| Refused {
            entity: id.to_string(),
            reason: refusal.reason.to_owned(),
            message: refusal.message.clone(),
        })
    }
}

/// The pause after so many failures, a quarter longer or shorter by chance.
pub(crate) fn pause(failures: u32) -> Duration {
    let doubled = FIRST
        .saturating_mul(1 << failures.saturating_sub(1).min(16))
        .min(LONGEST);
    // Without randomness the pause is the middle one: that costs nothing but spread.
    let chance = getrandom::u32().unwrap_or(u32::MAX / 2);
    doubled.mul_f64(0.75 + 0.5 * f64::from(chance) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use spanwire_router::entity::{Connector, EntityType, SslProfile};
    use spanwire_router::report::reason::ROUTER_REFUSED;

    fn id(name: &str) -> EntityId {
        EntityId::new(EntityType::Connector, name)
    }

    fn note(refusals: &mut Refusals, name: &str, form: &str) {
        refusals.note(id(name), form.to_owned(), ROUTER_REFUSED, "no".to_owned());
    }

    #[test]
    fn pauses_double_up_to_a_cap_and_differ() {
        for (failures, middle) in [
            (1, 500),
            (2, 1_000),
            (3, 2_000),
            (7, 30_000),
            (u32::MAX, 30_000),
        ] {
            let middle = Duration::from_millis(middle);
            for _ in 0..100 {
                let pause = pause(failures);
                assert!(
                    pause >= middle.mul_f64(0.75) && pause <= middle.mul_f64(1.25),
                    "{pause:?}"
                );
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_entity_waits_by_itself_and_in_the_form_that_was_refused() {
        let mut refusals = Refusals::default();
        note(&mut refusals, "a", "1");
        let now = Instant::now();
        assert!(refusals.is_waiting(&id("a"), "1", now));
        assert!(!refusals.is_waiting(&id("a"), "2", now));
        assert!(!refusals.is_waiting(&id("b"), "1", now));
        let due = refusals.next_due().unwrap();
        assert!(!refusals.is_waiting(&id("a"), "1", due));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_due_and_not_refused_again_is_forgotten() {
        let mut refusals = Refusals::default();
        note(&mut refusals, "a", "1");
        note(&mut refusals, "b", "1");
        tokio::time::advance(Duration::from_secs(1)).await;
        let begun = Instant::now();
        note(&mut refusals, "b", "1");
        refusals.expire(begun);
        assert!(!refusals.has(&id("a")) && refusals.has(&id("b")));
        assert!(
            refusals.next_due().unwrap() > begun,
            "nothing is due for ever"
        );
    }

    #[test]
    fn the_form_of_a_profile_has_no_ordinals() {
        let profile = |ordinal, version: &str| {
            let cert_file = Some(version.to_owned());
            form(&Entity::SslProfile(SslProfile {
                ordinal,
                cert_file,
                ..SslProfile::default()
            }))
        };
        assert_eq!(profile(Some(1), "v"), profile(Some(2), "v"));
        assert_ne!(profile(Some(1), "v"), profile(Some(1), "w"));
        let connector = |port| {
            form(&Entity::Connector(Connector {
                port,
                ..Connector::default()
            }))
        };
        assert_ne!(connector(1), connector(2));
    }
}
