//! At which write of a redemption is its operator killed?

use std::sync::{Mutex, MutexGuard, PoisonError};

use spanwire_e2e::fault_proxy::{Asked, Fate};

use super::TAKES;

/// Whether the API server has done a write when the operator that asked for it is killed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Moment {
    Before,
    After,
}

/// Holds one write of one redemption.
#[derive(Debug, Default)]
pub(super) struct Trap(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Whose redemption, and which of its writes, the first being 1.
    wanted: Option<(String, usize, Moment)>,
    seen: usize,
    caught: Option<Asked>,
}

impl Trap {
    pub(super) fn set(&self, token: &str, write: usize, moment: Moment) {
        *self.state() = State {
            wanted: Some((token.to_owned(), write, moment)),
            ..State::default()
        };
    }

    /// What was caught since it was set.
    pub(super) fn caught(&self) -> Option<Asked> {
        self.state().caught.clone()
    }

    pub(super) fn fate(&self, asked: &Asked) -> Fate {
        let mut state = self.state();
        let Some((token, write, moment)) = state.wanted.clone() else {
            return Fate::Pass;
        };
        if state.caught.is_some() || !is_of_redemption(asked, &token) {
            return Fate::Pass;
        }
        state.seen += 1;
        if state.seen < write {
            return Fate::Pass;
        }
        state.caught = Some(asked.clone());
        match moment {
            Moment::Before => Fate::HoldRequest,
            Moment::After => Fate::HoldAnswer,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The Secret and the Links, whose names are not in the path of the requests that make them, and the token's status; not
/// what is made of those later.
fn is_of_redemption(asked: &Asked, token: &str) -> bool {
    asked.namespace == TAKES
        && match (asked.resource.as_str(), asked.verb) {
            ("secrets" | "links", "create") => true,
            ("accesstokens", "patch") => asked.name == token,
            _ => false,
        }
}
