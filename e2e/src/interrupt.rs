//! Did a person ask us to stop?
//!
//! Ctrl-C and SIGTERM set a flag; whatever waits looks at it and returns an error, and the destructors on the way out
//! end what was started. Nothing is cut off in the middle of its clean-up.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{Context as _, Result, bail};

static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on, turns Ctrl-C and SIGTERM into errors of whatever waits.
pub fn listen() -> Result<()> {
    let asked = ASKED.get_or_init(Arc::default);
    for signal in [
        signal_hook::consts::SIGINT,
        signal_hook::consts::SIGTERM,
        signal_hook::consts::SIGHUP,
    ] {
        signal_hook::flag::register(signal, asked.clone()).context("listen for signals")?;
    }
    Ok(())
}

/// Whether a signal came since [`listen`].
pub fn is_asked() -> bool {
    ASKED
        .get()
        .is_some_and(|asked| asked.load(Ordering::Relaxed))
}

/// An error once a signal came.
pub fn check() -> Result<()> {
    if is_asked() {
        bail!("interrupted");
    }
    Ok(())
}
