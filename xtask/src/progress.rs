//! What is going on, and how long does it take? One line a step: moving on a terminal, plain elsewhere.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use spanwire_e2e::Say;

const NAME_WIDTH: usize = 16;
const DETAIL_WIDTH: usize = 58;
/// How often a long step says something where lines cannot move.
const PLAIN_EVERY: Duration = Duration::from_secs(15);

/// The steps of a task so far.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    seconds: Mutex<Vec<(String, f64)>>,
}

impl Steps {
    /// Does a step; it returns a few words about its outcome with its value.
    pub(crate) fn run<T>(
        &self,
        name: &str,
        work: impl FnOnce(Say<'_>) -> Result<(T, String)>,
    ) -> Result<T> {
        let start = Instant::now();
        let bar = ProgressBar::new_spinner();
        let moving = format!("{{spinner:.cyan}} {name:<NAME_WIDTH$}{{wide_msg}} {{elapsed}}");
        if let Ok(style) = ProgressStyle::with_template(&moving) {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(100));
        let spoken = Mutex::new(start);
        let done = work(&|now| {
            bar.set_message(now.to_owned());
            if bar.is_hidden() {
                speak(&spoken, name, now);
            }
        });
        bar.finish_and_clear();
        let elapsed = start.elapsed().as_secs_f64();
        match done {
            Ok((value, detail)) => {
                self.note(name, &detail, Some(elapsed));
                Ok(value)
            }
            Err(error) => {
                println!("✘ {}", line(name, "failed", Some(elapsed)));
                Err(error)
            }
        }
    }

    /// Tells of something that is done already.
    pub(crate) fn note(&self, name: &str, detail: &str, seconds: Option<f64>) {
        println!("✔ {}", line(name, detail, seconds));
        if let (Some(seconds), Ok(mut all)) = (seconds, self.seconds.lock()) {
            all.push((name.to_owned(), (seconds * 100.0).round() / 100.0));
        }
    }

    /// Each step with the seconds that it took.
    pub(crate) fn seconds(&self) -> serde_json::Map<String, serde_json::Value> {
        let all = self
            .seconds
            .lock()
            .map(|all| all.clone())
            .unwrap_or_default();
        all.into_iter()
            .map(|(name, seconds)| (name, seconds.into()))
            .collect()
    }
}

fn speak(spoken: &Mutex<Instant>, name: &str, now: &str) {
    if let Ok(mut last) = spoken.lock()
        && last.elapsed() >= PLAIN_EVERY
    {
        *last = Instant::now();
        println!("  {}", line(name, now, None));
    }
}

fn line(name: &str, detail: &str, seconds: Option<f64>) -> String {
    let time = seconds
        .map(|seconds| format!("{seconds:>7.1} s"))
        .unwrap_or_default();
    format!("{name:<NAME_WIDTH$}{detail:<DETAIL_WIDTH$}{time}")
        .trim_end()
        .to_owned()
}
