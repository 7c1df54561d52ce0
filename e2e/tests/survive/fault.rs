//! What goes wrong, and when? One write, or all that is asked for a while.

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

/// What happens to all that is asked for a while, from the first write on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Weather {
    /// Too many requests: come back in a second.
    Crowded,
    /// All is refused, as by an API server that has lost its etcd.
    Sick,
    /// Nothing is answered.
    Silent,
    /// No watch can go on from where it was.
    Forgetful,
    /// Watches end every second, in the middle of an event or not.
    Broken,
}

impl Weather {
    pub(super) const ALL: [Weather; 5] = [
        Weather::Crowded,
        Weather::Sick,
        Weather::Silent,
        Weather::Forgetful,
        Weather::Broken,
    ];

    /// The most requests a second that make sense meanwhile, a Lease's apart.
    pub(super) fn most_requests(self) -> Option<usize> {
        match self {
            Weather::Crowded => Some(2),
            _ => None,
        }
    }

    fn fate(self, asked: &Asked) -> Fate {
        match self {
            Weather::Crowded => Fate::TellToWait(1),
            Weather::Sick => Fate::Refuse(500),
            Weather::Silent => Fate::HoldRequest,
            Weather::Forgetful if asked.verb == "watch" => Fate::Refuse(410),
            Weather::Broken if asked.verb == "watch" => Fate::Cut(Duration::from_secs(1)),
            Weather::Forgetful | Weather::Broken => Fate::Pass,
        }
    }
}

/// What is to happen.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Plot {
    /// At the write of this number, the first being 1.
    At(usize, Fault),
    /// From the first write on, for this long.
    For(Duration, Weather),
}

impl Plot {
    pub(super) fn is_spell(self) -> bool {
        matches!(self, Plot::For(..))
    }
}

/// What is to happen in each namespace, and what has.
#[derive(Debug, Default)]
pub(super) struct Script(Mutex<HashMap<String, Scene>>);

#[derive(Debug)]
struct Scene {
    plot: Option<Plot>,
    writes: usize,
    last: Instant,
    hit: Option<String>,
    /// Since when something goes wrong, and how much was asked meanwhile.
    since: Option<Instant>,
    requests: usize,
}

impl Default for Scene {
    fn default() -> Self {
        Self {
            plot: None,
            writes: 0,
            last: Instant::now(),
            hit: None,
            since: None,
            requests: 0,
        }
    }
}

impl Script {
    /// Counts the writes in a namespace anew, and has this happen.
    pub(super) fn arm(&self, namespace: &str, plot: Option<Plot>) {
        let scene = Scene {
            plot,
            ..Scene::default()
        };
        lock(&self.0).insert(namespace.to_owned(), scene);
    }

    pub(super) fn fate(&self, asked: &Asked) -> Fate {
        let mut scenes = lock(&self.0);
        let is_ours = asked.user_agent.starts_with("spanwire/");
        let scene = scenes.get_mut(&asked.namespace).filter(|_| is_ours);
        scene.map_or(Fate::Pass, |scene| scene.fate(asked))
    }

    /// How many writes there were since it was armed, and how long ago the last was.
    pub(super) fn writes(&self, namespace: &str) -> (usize, Duration) {
        let scenes = lock(&self.0);
        let scene = scenes.get(namespace);
        scene.map_or((0, Duration::MAX), |scene| {
            (scene.writes, scene.last.elapsed())
        })
    }

    /// Whether something goes wrong now.
    pub(super) fn is_on(&self, namespace: &str) -> bool {
        let scenes = lock(&self.0);
        scenes
            .get(namespace)
            .is_some_and(|scene| scene.weather().is_some())
    }

    /// How much was asked while something went wrong.
    pub(super) fn requests(&self, namespace: &str) -> usize {
        let scenes = lock(&self.0);
        scenes.get(namespace).map_or(0, |scene| scene.requests)
    }

    /// The write at which it happened, or began.
    pub(super) fn hit(&self, namespace: &str) -> Option<String> {
        lock(&self.0).get(namespace)?.hit.clone()
    }
}

impl Scene {
    fn fate(&mut self, asked: &Asked) -> Fate {
        // Leases and events are no part of what a user asks for.
        let counts = !matches!(asked.resource.as_str(), "leases" | "events");
        if asked.write.is_some() && counts {
            self.writes += 1;
            self.last = Instant::now();
            let begins = match self.plot {
                Some(Plot::At(write, _)) => write == self.writes,
                Some(Plot::For(..)) => self.writes == 1,
                None => false,
            };
            if begins {
                let Asked {
                    verb,
                    resource,
                    subresource,
                    name,
                    ..
                } = asked;
                self.hit = Some(format!("{verb} {resource} {name} {subresource}"));
                self.since = Some(Instant::now());
                if let Some(Plot::At(_, fault)) = self.plot {
                    return fault.fate();
                }
            }
        }
        let Some(weather) = self.weather() else {
            return Fate::Pass;
        };
        self.requests += usize::from(counts);
        weather.fate(asked)
    }

    fn weather(&self) -> Option<Weather> {
        match (self.plot, self.since) {
            (Some(Plot::For(period, weather)), Some(since)) if since.elapsed() < period => {
                Some(weather)
            }
            _ => None,
        }
    }
}
