//! How is a claim counted, exactly once?
//!
//! The ledger is the grant's own status: the counter and the latest claims change together, by one JSON patch that
//! names the revision it was made for. So of two writers one is refused, reads again and decides again. A write whose
//! fate is unclear is read back: the claim is in the ledger or it is not, and if it should still arrive later, it
//! names a revision that is gone.
//!
//! Inside one process, the redemptions of one grant queue up rather than refuse each other, and whoever's turn it is
//! records the claims of all who wait, in one write.

mod write;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use spanwire_plan::offer::{self, Allowance};
use tokio::sync::Mutex as Queue;
use tokio::sync::oneshot;

use super::{GrantRecord, Refusal, Server};
use write::Written;

/// How often one claim is written or read before the client is told to come back.
const TRIES: u32 = 24;
/// The first pause after a try that failed; each further one is as much longer.
const PAUSE: Duration = Duration::from_millis(20);
/// The longest pause.
const MAX_PAUSE: Duration = Duration::from_millis(500);
/// The most claims of one write: fewer than are kept, so that each can be repeated.
const BATCH: usize = 64;

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

#[derive(Default)]
struct Page {
    /// Whose turn it is; and what the last one left for the next: the watch may not have told it yet.
    turn: Queue<Option<GrantRecord>>,
    waiting: Mutex<Vec<Waiting>>,
}

/// A claim that is to be recorded, and who wants to know.
struct Waiting {
    claim: String,
    answer: oneshot::Sender<Result<Recorded, Refusal>>,
}

/// A page while it is in use.
struct OpenPage<'a> {
    ledgers: &'a Ledgers,
    uid: &'a str,
    page: Arc<Page>,
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

impl Page {
    /// Puts a claim on the list. Its answer is closed where whoever had the turn gave up.
    fn enter(&self, claim: &str) -> oneshot::Receiver<Result<Recorded, Refusal>> {
        let (answer, heard) = oneshot::channel();
        let claim = claim.to_owned();
        self.waiting().push(Waiting { claim, answer });
        heard
    }

    /// Takes those who have waited longest off the list, but none who has gone.
    fn next(&self) -> Vec<Waiting> {
        let mut waiting = self.waiting();
        waiting.retain(|waiting| !waiting.answer.is_closed());
        let count = waiting.len().min(BATCH);
        waiting.drain(..count).collect()
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Waiting>> {
        // Whole entries come and go: a panic elsewhere leaves none half done.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn tell(self, answer: Result<Recorded, Refusal>) {
        // Who has gone comes back, and is told then.
        let _ = self.answer.send(answer);
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
        let mut heard = page.enter(claim);
        loop {
            tokio::select! {
                biased;
                answer = &mut heard => match answer {
                    Ok(answer) => return answer,
                    // Whoever had the turn gave up, and what became of this claim the next one will see.
                    Err(_) => heard = page.enter(claim),
                },
                mut last = page.turn.lock() => {
                    let mut waiting = page.next();
                    if let Err(refusal) = self.commit(grant, &mut waiting, &mut last).await {
                        for one in waiting {
                            one.tell(Err(refusal.clone()));
                        }
                    }
                }
            }
        }
    }

    /// Records the claims of all who wait, and tells each what came of it; those who are left in `waiting` are refused.
    /// `last` is what the turn before left for this one, and this one leaves for the next.
    async fn commit(
        &self,
        grant: &GrantRecord,
        waiting: &mut Vec<Waiting>,
        last: &mut Option<GrantRecord>,
    ) -> Result<(), Refusal> {
        // The counter only ever grows, so it tells which of two records is the later one.
        let later = last
            .take()
            .filter(|last| last.allowance.made > grant.allowance.made);
        let mut known = Some(later.unwrap_or_else(|| grant.clone()));
        // What is known so far may be older than what a user has allowed since.
        let mut is_confirmed = false;
        for turn in 0..TRIES {
            let current = if let Some(known) = known.take() {
                known
            } else {
                is_confirmed = true;
                let Some(current) = self.read_back(grant).await? else {
                    pause(turn).await;
                    continue;
                };
                current
            };
            let now = self.clock.now();
            for one in waiting.extract_if(.., |one| current.holds(&one.claim, now)) {
                one.tell(Ok(Recorded::Repeated));
            }
            let (claims, refusal) = sift(waiting, current.allowance, now);
            let record = if claims.is_empty() {
                if matches!(refusal, Some(offer::Refusal::UsedUp(_))) && !is_confirmed {
                    continue;
                }
                current
            } else {
                let Written::Done(record) = self.write(&current, &claims).await? else {
                    pause(turn).await;
                    continue;
                };
                tell(waiting, &claims, current.allowance.made);
                record
            };
            *last = Some(record);
            return refusal.map_or(Ok(()), |refusal| Err(refusal.into()));
        }
        Err(Refusal::Unavailable)
    }
}

/// The claims that there is room for, each once, and why there is none for the others.
fn sift(
    waiting: &[Waiting],
    allowance: Allowance,
    now: Timestamp,
) -> (Vec<String>, Option<offer::Refusal>) {
    let mut claims: Vec<String> = Vec::new();
    let mut refusal = None;
    for one in waiting {
        if claims.contains(&one.claim) {
            continue;
        }
        match allowance.after(claims.len()).refusal(now) {
            None => claims.push(one.claim.clone()),
            refused => refusal = refused,
        }
    }
    (claims, refusal)
}

/// Tells those whose claims were recorded as the ones that come after the first `made`. Who came twice with one claim was
/// counted once.
fn tell(waiting: &mut Vec<Waiting>, claims: &[String], made: i64) {
    for (claim, count) in claims.iter().zip(made + 1..) {
        let mut recorded = Recorded::New(count);
        for one in waiting.extract_if(.., |one| one.claim == *claim) {
            one.tell(Ok(recorded));
            recorded = Recorded::Repeated;
        }
    }
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
    use super::*;

    const ALLOWANCE: Allowance = Allowance {
        allowed: 5,
        made: 3,
        end: Some(Timestamp::MAX),
    };

    fn enter(page: &Page, claims: &[&str]) -> Vec<oneshot::Receiver<Result<Recorded, Refusal>>> {
        claims.iter().map(|claim| page.enter(claim)).collect()
    }

    #[test]
    fn a_batch_is_as_large_as_what_is_left_and_counts_each_claim_once() {
        let page = Page::default();
        let heard = enter(&page, &["a", "b", "a", "c"]);
        let mut waiting = page.next();
        let (claims, refusal) = sift(&waiting, ALLOWANCE, Timestamp::UNIX_EPOCH);
        assert_eq!(claims, ["a", "b"]);
        assert!(matches!(refusal, Some(offer::Refusal::UsedUp(_))));
        tell(&mut waiting, &claims, ALLOWANCE.made);
        assert_eq!(waiting.len(), 1);
        let answers: Vec<_> = heard
            .into_iter()
            .map(|mut one| one.try_recv().ok())
            .collect();
        let told =
            [Recorded::New(4), Recorded::New(5), Recorded::Repeated].map(|one| Some(Ok(one)));
        assert_eq!(answers, [&told[..], &[None]].concat());
    }

    #[test]
    fn who_has_gone_is_not_counted_and_a_crowd_is_recorded_in_parts() {
        let page = Page::default();
        let names: Vec<String> = (0..100).map(|number| number.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut heard = enter(&page, &names);
        drop(heard.remove(0));
        let batches: Vec<Vec<Waiting>> = (0..3).map(|_| page.next()).collect();
        let sizes: Vec<usize> = batches.iter().map(Vec::len).collect();
        assert_eq!(sizes, [BATCH, 99 - BATCH, 0]);
        assert_eq!(batches[0][0].claim, "1");
    }

    #[tokio::test]
    async fn a_page_lives_as_long_as_somebody_uses_it() {
        let ledgers = Ledgers::default();
        let (one, other) = (ledgers.open("u"), ledgers.open("u"));
        let _heard = one.enter("a");
        drop(one);
        assert_eq!(other.next().len(), 1);
        drop(other);
        assert!(ledgers.pages().is_empty());
    }
}
