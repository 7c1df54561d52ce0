//! What does chance decide? The same again for the same seed, which `SPANWIRE_SEED` may name.

use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result};

const VARIABLE: &str = "SPANWIRE_SEED";

/// A source of numbers that look like chance; enough for tests, and for nothing else.
#[derive(Debug)]
pub struct Dice {
    /// What to set `SPANWIRE_SEED` to for the same numbers again.
    pub seed: u64,
    state: Mutex<u64>,
}

impl Dice {
    /// By the seed that the environment names, else by one that is different each time.
    pub fn new() -> Result<Dice> {
        let seed = match std::env::var(VARIABLE) {
            Ok(seed) => seed
                .parse()
                .with_context(|| format!("{VARIABLE}={seed} is no number"))?,
            Err(_) => std::process::id().into(),
        };
        Ok(Dice {
            seed,
            state: Mutex::new(seed),
        })
    }

    /// A number below `limit`.
    pub fn below(&self, limit: u64) -> u64 {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators).
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut number = *state;
        number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (number ^ (number >> 31)) % limit.max(1)
    }

    /// Whether something happens that happens so many times in a hundred.
    pub fn happens(&self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_so_often_happens_about_so_often() {
        let dice = Dice::new().unwrap();
        let count = (0..10_000).filter(|_| dice.happens(30)).count();
        assert!(
            (2_500..3_500).contains(&count),
            "{count}, seed {}",
            dice.seed
        );
    }
}
