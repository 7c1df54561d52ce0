//! Which write goes wrong, and how?

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use spanwire_e2e::fault_proxy::{Asked, Fate};

use super::lock;

/// What happens at a write.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Fault {
    /// The operator dies before the API server hears of it.
    KillBefore,
    /// The operator dies before it hears that it is done.
    KillAfter,
    /// The connection ends, and it is not done.
    Lost,
    /// It is done, and the connection ends.
    AnswerLost,
    /// It is done, and the API server says that it took too long.
    TimedOut,
    /// It is refused, as if somebody else had written meanwhile.
    Conflict,
    /// It is refused for now.
    Unavailable,
}

impl Fault {
    pub(super) const ALL: [Fault; 7] = [
        Fault::KillBefore,
        Fault::KillAfter,
        Fault::Lost,
        Fault::AnswerLost,
        Fault::TimedOut,
        Fault::Conflict,
        Fault::Unavailable,
    ];

    pub(super) fn kills(self) -> bool {
        matches!(self, Fault::KillBefore | Fault::KillAfter)
    }

    fn fate(self) -> Fate {
        match self {
            Fault::KillBefore => Fate::HoldRequest,
            Fault::KillAfter => Fate::HoldAnswer,
            Fault::Lost => Fate::LoseRequest,
            Fault::AnswerLost => Fate::LoseAnswer,
            Fault::TimedOut => Fate::DoAndRefuse(504),
            Fault::Conflict => Fate::Refuse(409),
            Fault::Unavailable => Fate::Refuse(503),
        }
    }
}

/// What is to happen in each namespace, and what has.
#[derive(Debug, Default)]
pub(super) struct Script(Mutex<HashMap<String, Scene>>);

#[derive(Debug)]
struct Scene {
    /// The number of the write, the first being 1, and what happens to it.
    armed: Option<(usize, Fault)>,
    writes: usize,
    last: Instant,
    hit: Option<String>,
}

impl Default for Scene {
    fn default() -> Self {
        Self {
            armed: None,
            writes: 0,
            last: Instant::now(),
            hit: None,
        }
    }
}

impl Script {
    /// Counts the writes in a namespace anew, and has this happen at one of them.
    pub(super) fn arm(&self, namespace: &str, armed: Option<(usize, Fault)>) {
        let scene = Scene {
            armed,
            ..Scene::default()
        };
        lock(&self.0).insert(namespace.to_owned(), scene);
    }

    /// Leases and events are no part of what a user asks for.
    pub(super) fn fate(&self, asked: &Asked) -> Fate {
        let counts = asked.write.is_some()
            && asked.user_agent.starts_with("spanwire/")
            && !matches!(asked.resource.as_str(), "leases" | "events");
        let mut scenes = lock(&self.0);
        let Some(scene) = scenes.get_mut(&asked.namespace).filter(|_| counts) else {
            return Fate::Pass;
        };
        scene.writes += 1;
        scene.last = Instant::now();
        match scene.armed {
            Some((write, fault)) if write == scene.writes => {
                let Asked {
                    verb,
                    resource,
                    subresource,
                    name,
                    ..
                } = asked;
                scene.hit = Some(format!("{verb} {resource} {name} {subresource}"));
                fault.fate()
            }
            _ => Fate::Pass,
        }
    }

    /// How many writes there were since it was armed, and how long ago the last was.
    pub(super) fn writes(&self, namespace: &str) -> (usize, Duration) {
        let scenes = lock(&self.0);
        let scene = scenes.get(namespace);
        scene.map_or((0, Duration::MAX), |scene| {
            (scene.writes, scene.last.elapsed())
        })
    }

    /// The write at which it happened.
    pub(super) fn hit(&self, namespace: &str) -> Option<String> {
        lock(&self.0).get(namespace)?.hit.clone()
    }
}
