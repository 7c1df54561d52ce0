//! How long until it is so? Every wait has a condition, a name and a deadline.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::interrupt;

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// A probe that takes longer than this is repeated as often as one that takes this long.
const DEAREST: Duration = Duration::from_millis(500);

/// Calls `probe` until it yields a value; fails after `within`, at an interrupt, and when the probe itself fails.
///
/// `what` completes the sentence "waited … for".
pub fn until<T>(
    what: &str,
    within: Duration,
    mut probe: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let start = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        interrupt::check()?;
        let asked = Instant::now();
        if let Some(value) = probe()? {
            return Ok(value);
        }
        if start.elapsed() >= within {
            bail!("waited {:.0} s in vain for {what}", within.as_secs_f64());
        }
        // Who looks often at what is dear to look at keeps others from getting there.
        std::thread::sleep(pause.max(asked.elapsed().min(DEAREST) * 2));
        pause = (pause * 3 / 2).min(LONGEST_PAUSE);
    }
}

/// Lets `period` pass, or fails at an interrupt; for observing that nothing happens.
pub fn for_period(period: Duration) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < period {
        interrupt::check()?;
        std::thread::sleep(LONGEST_PAUSE.min(period.saturating_sub(start.elapsed())));
    }
    Ok(())
}

/// Whether `condition` came true within `limit`. Pays no heed to interrupts: for tidying up.
pub fn quietly(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if condition() {
            return true;
        }
        if start.elapsed() >= limit {
            return false;
        }
        std::thread::sleep(FIRST_PAUSE);
    }
}
