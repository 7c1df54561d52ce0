//! Is the operator alive, and can it be counted on?
//!
//! Alive: its own loop turns. Ready: every store has been filled once, what the objects name has been asked for, the
//! loop turns, and nobody has asked it to stop. Neither is about the API server: an operator that is restarted because
//! the masters are gone is worse off than before (`design.md` §7).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long the loop may go without a beat before it counts as stuck. A pass may take 30 s, so it is not stuck for
/// one of them.
const STUCK: Duration = Duration::from_secs(90);

/// What is known of the operator's health; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// What is still missing, and how many wait for it.
    held: BTreeMap<&'static str, usize>,
    last_beat: Option<Instant>,
    is_stopping: bool,
}

/// One thing that is missing: once it is dropped, it is not missing any more.
#[derive(Debug)]
#[must_use = "readiness is held until this is dropped"]
pub struct Hold {
    health: Health,
    reason: &'static str,
}

impl Health {
    /// Healthy, and ready unless something is held.
    pub fn new() -> Self {
        Self::default()
    }

    /// Says what is missing, as a sentence for a person; readiness waits until the hold is dropped.
    pub fn hold(&self, reason: &'static str) -> Hold {
        *self.state().held.entry(reason).or_default() += 1;
        Hold {
            health: self.clone(),
            reason,
        }
    }

    /// The loop has turned.
    pub fn beat(&self) {
        self.state().last_beat = Some(Instant::now());
    }

    /// The operator is about to stop: it is not ready any more, though it still serves.
    pub fn stop(&self) {
        self.state().is_stopping = true;
    }

    /// Whether the loop turns, or why not. One that has not begun yet is alive: there is no deadline for a start.
    pub fn liveness(&self) -> Result<(), String> {
        match self.state().last_beat {
            Some(beat) if beat.elapsed() > STUCK => Err(format!(
                "the event loop has not turned for {} s",
                beat.elapsed().as_secs()
            )),
            _ => Ok(()),
        }
    }

    /// Whether nothing is missing any more.
    pub fn is_complete(&self) -> bool {
        self.state().held.is_empty()
    }

    /// Whether the operator can be counted on, or why not.
    pub fn readiness(&self) -> Result<(), String> {
        let held = {
            let state = self.state();
            if state.is_stopping {
                return Err("the operator is stopping".to_owned());
            }
            state.held.keys().copied().collect::<Vec<_>>().join(", ")
        };
        if held.is_empty() {
            self.liveness()
        } else {
            Err(held)
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Single assignments: there is no half-done state to be afraid of.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut state = self.health.state();
        if let Some(count) = state.held.get_mut(self.reason) {
            *count -= 1;
            if *count == 0 {
                state.held.remove(self.reason);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_when_the_last_hold_is_dropped() {
        let health = Health::new();
        let (one, other) = (health.hold("a"), health.hold("a"));
        let last = health.hold("b");
        assert_eq!(health.readiness(), Err("a, b".to_owned()));
        drop(one);
        drop(last);
        assert_eq!(health.readiness(), Err("a".to_owned()));
        assert!(!health.is_complete());
        drop(other);
        assert!(health.is_complete());
        assert_eq!(health.readiness(), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_does_not_turn_is_neither_alive_nor_ready() {
        let health = Health::new();
        tokio::time::advance(Duration::from_hours(1)).await;
        assert_eq!(health.liveness(), Ok(()));
        health.beat();
        tokio::time::advance(Duration::from_secs(80)).await;
        assert_eq!(health.readiness(), Ok(()));
        tokio::time::advance(Duration::from_secs(20)).await;
        let stuck = Err("the event loop has not turned for 100 s".to_owned());
        assert_eq!(health.liveness(), stuck);
        assert_eq!(health.readiness(), stuck);
        health.beat();
        assert_eq!(health.readiness(), Ok(()));
    }

    #[test]
    fn an_operator_that_stops_is_alive_and_not_ready() {
        let health = Health::new();
        health.stop();
        assert_eq!(health.liveness(), Ok(()));
        assert_eq!(
            health.readiness(),
            Err("the operator is stopping".to_owned())
        );
    }
}
