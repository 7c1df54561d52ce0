//! How does the router come to what is wanted, and stay there?
//!
//! One loop, driven by four things: the folder changed, a refused change is due again, it is time
//! to look at the links, or the connection was lost. Each ends in a pass from what the router says
//! it has to what the folder says it should have, so there is no other path for a start, a restart,
//! or an outage. Dropped anywhere, it leaves a valid router behind.

mod desired;
mod link;
mod pass;
mod probe;
mod reading;
mod record;
mod refusal;

use crate::args::Args;
use crate::credentials::Store;
use crate::error::AskRouter;
use crate::management::Management;
use crate::mount::Mount;
use crate::telemetry::Health;
use desired::Desired;
pub(crate) use link::is_dialled;
use record::Record;
use refusal::Refusals;
pub(crate) use refusal::pause;
use spanwire_router::diff::Live;
use spanwire_router::entity::{EntityType, Mode};
use spanwire_router::report::{LinkReport, Refused, Report, RouterReport, reason};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

/// The first pause before another attempt to connect.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest: each attempt makes the router log two or three lines.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A router that cannot be asked for so long has no links. Links outlive a connection that was only
/// given up.
const GIVEN_UP: Duration = Duration::from_secs(3);

/// How often the router is compared with what is wanted although nothing happened: somebody else
/// may have changed it.
const RESYNC: Duration = Duration::from_mins(1);

/// How soon that is done after a change of the folder, which is made from what was known.
const AFTER_CHANGE: Duration = Duration::from_secs(2);

/// How often links are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// How soon a link is looked at that is being dialled for the first time; then half as often each time.
const FIRST_LOOK: Duration = Duration::from_millis(50);

/// Looking takes at most one part in this many of the time: rows grow with the streams that a
/// router carries.
const LOOK_SHARE: u32 = 20;

/// The state of the loop.
pub(crate) struct Sync {
    address: String,
    mount: Mount,
    store: Store,
    reports: watch::Sender<Report>,
    health: Arc<Health>,
    desired: Desired,
    /// What this router process has accepted from us. Forgotten with the connection.
    record: Record,
    refusals: Refusals,
    live: Live,
    /// Whether `live` is what this router said, but for what it accepted since.
    knows_live: bool,
    /// Whether the router had anything of ours when that was last known.
    has_ours: bool,
    /// The types that were read with all their attributes.
    whole: BTreeSet<EntityType>,
    links: BTreeMap<String, LinkReport>,
    /// Listener → the port that it has opened.
    listeners: BTreeMap<String, u16>,
    router: RouterReport,
    /// What is wanted and cannot be tried yet.
    waiting: Vec<Refused>,
    settled: bool,
    /// When connections with an older credential are to be closed.
    retirement: Option<Instant>,
    /// The last failure to reach the router that was logged: each is told once.
    told: Option<String>,
    /// Since when the router cannot be reached.
    lost: Option<Instant>,
    /// The pause before the next attempt to connect.
    pause: Duration,
}

impl Sync {
    /// A loop that has not read anything yet.
    pub(crate) fn new(args: &Args, reports: watch::Sender<Report>, health: Arc<Health>) -> Self {
        Self {
            address: args.management.clone(),
            mount: Mount::new(args.config_dir.clone()),
            store: Store::new(args.certs_dir.clone()),
            reports,
            health,
            desired: Desired::default(),
            record: Record::default(),
            refusals: Refusals::default(),
            live: Live::default(),
            knows_live: false,
            has_ours: false,
            whole: BTreeSet::new(),
            links: BTreeMap::new(),
            listeners: BTreeMap::new(),
            router: RouterReport::default(),
            waiting: Vec::new(),
            settled: false,
            retirement: None,
            told: None,
            lost: None,
            pause: FIRST_PAUSE,
        }
    }

    /// Runs for ever.
    pub(crate) async fn run(mut self) {
        self.read_mount();
        self.publish();
        loop {
            self.health.beat();
            let error = match Management::connect(&self.address).await {
                Ok(mut router) => {
                    let Err(error) = self.tend(&mut router).await;
                    error
                }
                Err(error) => error,
            };
            self.lose(&error);
            self.rest().await;
        }
    }

    /// Pauses before the next attempt; files are taken from the folder meanwhile.
    async fn rest(&mut self) {
        let end = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        loop {
            tokio::select! {
                () = sleep_until(end) => return,
                () = self.mount.changed() => {
                    self.read_mount();
                    self.publish();
                }
            }
        }
    }

    /// Keeps one router as it should be, until the connection is lost.
    async fn tend(&mut self, router: &mut Management) -> Result<Infallible, AskRouter> {
        self.meet(router).await?;
        self.publish();
        self.pass(router).await?;
        (self.told, self.lost, self.pause) = (None, None, FIRST_PAUSE);
        self.publish();
        let (mut look, mut every) = (Instant::now(), FIRST_LOOK);
        let mut resync = Instant::now() + RESYNC;
        loop {
            self.health.beat();
            let due = [
                self.refusals.next_due(),
                self.desired.again(),
                self.retirement,
            ];
            let due = due.into_iter().flatten().fold(resync, Instant::min);
            tokio::select! {
                error = router.lost() => return Err(error),
                () = self.mount.changed() => {
                    self.read_mount();
                    self.pass(router).await?;
                    // From what was known, which somebody else may have changed meanwhile.
                    resync = resync.min(Instant::now() + AFTER_CHANGE);
                    every = FIRST_LOOK;
                    look = look.min(Instant::now() + every);
                }
                () = sleep_until(due) => {
                    if self.desired.again().is_some_and(|again| again <= Instant::now()) {
                        self.read_mount();
                    }
                    self.knows_live = false;
                    self.pass(router).await?;
                    resync = Instant::now() + RESYNC;
                }
                () = sleep_until(look) => {
                    let started = Instant::now();
                    if !self.look(router).await? {
                        self.knows_live = false;
                        self.pass(router).await?;
                    }
                    every = if self.links.values().any(is_dialled) {
                        (every * 2).min(LOOK)
                    } else {
                        LOOK
                    };
                    look = Instant::now() + every.max(started.elapsed() * LOOK_SHARE);
                }
            }
            self.publish();
        }
    }

    /// Learns whose management this is.
    async fn meet(&mut self, router: &mut Management) -> Result<(), AskRouter> {
        let mut rows = router
            .query(EntityType::Router.management_name(), &["id", "mode"])
            .await?;
        let own = rows.next().unwrap_or_default();
        let text = |name: &str| own.get(name)?.as_str().map(str::to_owned);
        self.router.id = text("id");
        self.router.mode = match text("mode").as_deref() {
            Some("interior") => Some(Mode::Interior),
            Some("edge") => Some(Mode::Edge),
            Some("standalone") => Some(Mode::Standalone),
            _ => None,
        };
        let had_some = self.has_ours;
        self.record = Record::default();
        self.refusals.clear();
        self.read_live(router).await?;
        // A new process has nothing but its bootstrap; one that has more is the one that we knew, and
        // so is one that never had any.
        let is_known = self.router.starts > 0 && (self.has_ours || !had_some);
        self.close_listeners_without_port(router).await?;
        if !is_known {
            if self.router.starts > 0 {
                self.router.exits += 1;
            }
            self.router.starts += 1;
            self.lose_links();
        }
        info!(
            id = self.router.id,
            starts = self.router.starts,
            is_known,
            "Connected to the router"
        );
        Ok(())
    }

    fn lose(&mut self, error: &AskRouter) {
        self.tell(error);
        self.health.set_ready(false);
        self.settled = false;
        if self.lost.get_or_insert_with(Instant::now).elapsed() > GIVEN_UP {
            self.lose_links();
        }
        self.publish();
    }

    fn lose_links(&mut self) {
        self.listeners.clear();
        for link in self.links.values_mut() {
            link::lose(link);
        }
    }

    fn tell(&mut self, error: &AskRouter) {
        let error = error.to_string();
        if self.told.as_ref() != Some(&error) {
            warn!(
                address = self.address,
                error, "Lost the router; trying again"
            );
            self.told = Some(error);
        }
    }

    fn read_mount(&mut self) {
        let snapshot = self.mount.read();
        self.desired.take(snapshot, &self.store);
    }

    /// Says how things stand, if that has changed.
    fn publish(&mut self) {
        let mut refused = self.desired.faults();
        refused.extend(self.refusals.refused());
        refused.extend(self.waiting.iter().cloned());
        refused.extend(self.told.iter().map(|error| Refused {
            entity: "router".to_owned(),
            reason: reason::ROUTER_UNREACHABLE.to_owned(),
            message: error.clone(),
        }));
        refused.sort();
        refused.dedup();
        let report = Report {
            revision: self.desired.revision.clone(),
            settled: self.settled,
            refused,
            credentials: self.record.versions(),
            listeners: self.listeners.clone(),
            links: self.links.clone(),
            router: self.router.clone(),
            adaptor_version: env!("CARGO_PKG_VERSION").to_owned(),
            omitted: 0,
        };
        self.reports.send_if_modified(|last| {
            let is_new = *last != report;
            if is_new {
                *last = report;
            }
            is_new
        });
    }
}
