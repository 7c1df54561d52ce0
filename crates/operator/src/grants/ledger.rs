//! How is a claim counted, exactly once?
//!
//! The ledger is the grant's own status: the counter and the latest claims change together, by one JSON patch that
//! names the revision it was made for. So of two writers one is refused, reads again and decides again. A write whose
//! fate is unclear is read back: the claim is in the ledger or it is not, and if it should still arrive later, it
//! names a revision that is gone.
//!
//! Inside one process, the redemptions of one grant queue up rather than refuse each other.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{Patch, PatchParams};
use kube::{Api, Resource};
use serde_json::json;
use spanwire_api::{AccessGrant, Claim};
use spanwire_plan::Seen;
use spanwire_plan::offer;
use spanwire_plan::settle::FIELD_MANAGER;
use tokio::sync::Mutex as Queue;

use super::{GrantRecord, Refusal, Server};
use crate::error::{CallServer, within};

/// How often one claim is written or read before the client is told to come back.
const TRIES: u32 = 24;
/// The first pause after a try that failed; each further one is as much longer.
const PAUSE: Duration = Duration::from_millis(20);
/// The longest pause.
const MAX_PAUSE: Duration = Duration::from_millis(500);
/// How many claims are kept …
const CLAIMS: usize = 256;
/// … and for how long.
const MEMORY: SignedDuration = SignedDuration::from_hours(1);

/// What came of recording a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recorded {
    /// It is counted now, as the n-th.
    New(i64),
    /// It had been counted before.
    Repeated,
}

/// One page for each grant that is being redeemed.
#[derive(Default)]
pub(super) struct Ledgers(Mutex<HashMap<String, Arc<Page>>>);

/// What the last redemption of a grant left, for the next in the queue: the watch may not have told it yet.
#[derive(Default)]
struct Page(Queue<Option<GrantRecord>>);

/// A page while it is in use.
struct OpenPage<'a> {
    ledgers: &'a Ledgers,
    uid: &'a str,
    page: Arc<Page>,
}

/// What came of one write.
enum Written {
    Done(GrantRecord),
    /// Not done, or not known: read, and decide again.
    Unclear,
}

impl Ledgers {
    fn open<'a>(&'a self, uid: &'a str) -> OpenPage<'a> {
        let page = self.pages().entry(uid.to_owned()).or_default().clone();
        OpenPage {
            ledgers: self,
            uid,
            page,
        }
    }

    fn pages(&self) -> MutexGuard<'_, HashMap<String, Arc<Page>>> {
        // Single inserts and removals: a panic elsewhere leaves none half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Deref for OpenPage<'_> {
    type Target = Page;

    fn deref(&self) -> &Page {
        &self.page
    }
}

impl Drop for OpenPage<'_> {
    fn drop(&mut self) {
        let mut pages = self.ledgers.pages();
        if let Entry::Occupied(entry) = pages.entry(self.uid.to_owned())
            // The map's and ours: nobody is waiting for it.
            && Arc::strong_count(entry.get()) <= 2
        {
            entry.remove();
        }
    }
}

impl Server {
    /// Records a claim on a grant: new, or known already. Refuses where nothing is left for a new one.
    pub(super) async fn record(
        &self,
        grant: &GrantRecord,
        claim: &str,
    ) -> Result<Recorded, Refusal> {
        let page = self.ledgers.open(&grant.uid);
        let mut last = page.0.lock().await;
        // The counter only ever grows, so it tells which of two records is the later one.
        let later = last
            .take()
            .filter(|last| last.allowance.made > grant.allowance.made);
        let mut is_confirmed = later.is_none();
        let mut record = Some(later.unwrap_or_else(|| grant.clone()));
        for turn in 0..TRIES {
            let known = match record.take() {
                Some(record) => Some(record),
                None => self.read_back(grant).await?,
            };
            let Some(current) = known else {
                pause(turn).await;
                continue;
            };
            if current.holds(claim) {
                *last = Some(current);
                return Ok(Recorded::Repeated);
            }
            match current.allowance.refusal(self.clock.now()) {
                None => {}
                // What the last redemption left may be older than what a user has allowed since.
                Some(offer::Refusal::UsedUp(_)) if !is_confirmed => {
                    is_confirmed = true;
                    continue;
                }
                Some(refusal) => {
                    *last = Some(current);
                    return Err(refusal.into());
                }
            }
            is_confirmed = true;
            match self.write(&current, claim).await? {
                Written::Done(record) => {
                    let count = record.allowance.made;
                    *last = Some(record);
                    return Ok(Recorded::New(count));
                }
                Written::Unclear => pause(turn).await,
            }
        }
        Err(Refusal::Unavailable)
    }

    async fn write(&self, record: &GrantRecord, claim: &str) -> Result<Written, Refusal> {
        let patch = json!([
            {"op": "replace", "path": "/metadata/resourceVersion", "value": record.resource_version},
            {"op": "add", "path": "/status/redemptions", "value": record.allowance.made + 1},
            {"op": "add", "path": "/status/claims", "value": claims(record, claim, self.clock.now())},
        ]);
        let patch = serde_json::from_value(patch).map_err(|_| Refusal::Failed)?;
        let patch = Patch::<()>::Json(patch);
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let api: Api<Seen<AccessGrant>> = Api::namespaced(self.client.clone(), &record.namespace);
        let call = api.patch_status(&record.name, &params, &patch);
        match within(call).await {
            Ok(Seen::Fits(grant)) => Ok(Written::Done(GrantRecord::of(&grant))),
            // It was done, and what came back is not a grant: reading it back will tell.
            Ok(Seen::Odd(_)) => Ok(Written::Unclear),
            Err(error) if error.code() == Some(404) => Err(Refusal::UnknownGrant),
            Err(error) if is_unclear(&error) => {
                tracing::debug!(grant = record.name, namespace = record.namespace, %error, "Claim not recorded yet");
                Ok(Written::Unclear)
            }
            Err(error) => {
                tracing::warn!(grant = record.name, namespace = record.namespace, %error, "Claim refused by the API server");
                Err(Refusal::Unavailable)
            }
        }
    }

    /// The grant as it is now; none where there is no telling now.
    async fn read_back(&self, grant: &GrantRecord) -> Result<Option<GrantRecord>, Refusal> {
        let api: Api<Seen<AccessGrant>> = Api::namespaced(self.client.clone(), &grant.namespace);
        match within(api.get(&grant.name)).await {
            Ok(live) if live.meta().uid.as_ref() != Some(&grant.uid) => Err(Refusal::UnknownGrant),
            Ok(Seen::Fits(live)) => Ok(Some(GrantRecord::of(&live))),
            Ok(Seen::Odd(_)) => Err(Refusal::CorruptGrant),
            Err(error) if error.code() == Some(404) => Err(Refusal::UnknownGrant),
            Err(error) => {
                tracing::debug!(grant = grant.name, namespace = grant.namespace, %error, "Grant not read back");
                Ok(None)
            }
        }
    }
}

/// Whether a write may be made again: it met another one, or an API server that was not well, and may have been done.
fn is_unclear(error: &CallServer) -> bool {
    error
        .code()
        .is_none_or(|code| matches!(code, 409 | 429 | 500..))
}

/// The claims with a new one at the end: the newest, and none older than an hour.
fn claims(record: &GrantRecord, claim: &str, now: Timestamp) -> Vec<Claim> {
    let is_recent = |claim: &&Claim| {
        claim
            .time
            .parse::<Timestamp>()
            .is_ok_and(|time| now.duration_since(time) < MEMORY)
    };
    let mut claims: Vec<Claim> = record.claims.iter().filter(is_recent).cloned().collect();
    claims.push(Claim {
        hash: claim.to_owned(),
        time: now.to_string(),
    });
    let surplus = claims.len().saturating_sub(CLAIMS);
    claims.drain(..surplus);
    claims
}

/// Longer each time, and never as long as somebody else's.
async fn pause(turn: u32) {
    let mut lot = [0];
    // Without chance, everybody pauses as long; they still take turns by the network's chance.
    let _ = aws_lc_rs::rand::fill(&mut lot);
    let [lot] = lot;
    let longest = MAX_PAUSE.min(PAUSE * (turn + 1));
    tokio::time::sleep(longest.mul_f64(f64::from(lot) / 255.0)).await;
}

#[cfg(test)]
mod tests {
    use spanwire_plan::offer::Allowance;

    use super::*;

    fn record(claims: Vec<Claim>) -> GrantRecord {
        GrantRecord {
            namespace: "n".to_owned(),
            name: "g".to_owned(),
            uid: "u".to_owned(),
            resource_version: "1".to_owned(),
            issuer: None,
            allowance: Allowance {
                allowed: 1000,
                made: 0,
                end: None,
            },
            claims,
        }
    }

    #[test]
    fn the_newest_claims_are_kept_for_an_hour() {
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let claim = |hash: &str, time: &str| Claim {
            hash: hash.to_owned(),
            time: time.to_owned(),
        };
        let known = vec![
            claim("old", "2026-01-01T10:59:59Z"),
            claim("junk", "yesterday"),
            claim("recent", "2026-01-01T11:00:01Z"),
            claim("ahead", "2027-01-01T11:00:01Z"),
        ];
        let kept = claims(&record(known), "new", now);
        let hashes: Vec<&str> = kept.iter().map(|claim| claim.hash.as_str()).collect();
        assert_eq!(hashes, ["recent", "ahead", "new"]);
        assert_eq!(kept[2].time, "2026-01-01T12:00:00Z");

        let many = (0..300)
            .map(|n| claim(&n.to_string(), "2026-01-01T11:30:00Z"))
            .collect();
        let kept = claims(&record(many), "new", now);
        assert_eq!(kept.len(), 256);
        assert_eq!(
            (kept[0].hash.as_str(), kept[255].hash.as_str()),
            ("45", "new")
        );
    }

    #[tokio::test]
    async fn a_page_lives_as_long_as_somebody_uses_it() {
        let ledgers = Ledgers::default();
        let (one, other) = (ledgers.open("u"), ledgers.open("u"));
        *one.0.lock().await = Some(record(Vec::new()));
        drop(one);
        assert!(other.0.lock().await.is_some());
        drop(other);
        assert!(ledgers.pages().is_empty());
    }
}
