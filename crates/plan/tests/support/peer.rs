//! What does the site at the other end of a token answer?

use spanwire_plan::labels;
use spanwire_plan::plan::{ObjectKind, Redeem, StoredLink};
use spanwire_plan::world::{Attempt, Outcome};

use super::Cluster;
use super::issue::secret;
use super::server::Refused;

/// The grant server of another site.
#[derive(Clone)]
pub(crate) enum Peer {
    /// It answers with credentials and these links.
    Grants(Vec<StoredLink>),
    /// It does something else.
    Refuses(Outcome),
}

impl Default for Peer {
    fn default() -> Self {
        Self::Refuses(Outcome::Unreachable("nobody is there".to_owned()))
    }
}

impl Cluster {
    /// Redeems a token as the pool would: the answer is stored, the outcome is remembered.
    pub(super) fn redeem(&mut self, redeem: &Redeem) -> Result<(), Refused> {
        let outcome = match self.peer.clone() {
            Peer::Grants(links) => {
                self.store_answer(redeem, &links)?;
                Outcome::Stored
            }
            Peer::Refuses(outcome) => outcome,
        };
        self.redemptions += 1;
        let earlier = self.world.attempts.get(&redeem.uid);
        let earlier = earlier.filter(|earlier| earlier.generation == redeem.generation);
        let tries = earlier.map_or(0, |earlier| earlier.tries) + 1;
        let attempt = Attempt {
            generation: redeem.generation,
            at: self.now,
            tries,
            outcome,
        };
        self.world.attempts.insert(redeem.uid.clone(), attempt);
        Ok(())
    }

    fn store_answer(&mut self, redeem: &Redeem, links: &[StoredLink]) -> Result<(), Refused> {
        if self.world.live(ObjectKind::Secret, &redeem.token).is_some() {
            return Err(Refused(format!("{} exists", redeem.token)));
        }
        let ca = self.certificate("east site CA", "east site CA", true);
        let leaf = self.certificate(&redeem.subject, "east site CA", false);
        let mut metadata = self.metadata(&redeem.secret, None);
        let annotations = metadata.annotations.get_or_insert_default();
        annotations.insert(
            labels::LINKS.to_owned(),
            serde_json::to_string(links).unwrap(),
        );
        self.world.secrets.insert(secret(metadata, &leaf, &ca));
        Ok(())
    }
}
