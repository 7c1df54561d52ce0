//! How is a code exchanged for a link?
//!
//! The one door that is open to strangers. A request is answered in this order: is it well formed, is the code
//! right, is something left, make a credential in memory, record the claim, hand it out. What fails before the
//! record costs nothing; what is recorded stays the same claim however often its answer is lost
//! (`design.md` §6; the wire contract is `facts/skupper-v2.md` §7).
//!
//! The server knows no stores: what it has to know it asks a [`Directory`] for. What a grant gives, and when it gives
//! nothing, is [`spanwire_plan::offer`]'s to say.

mod answer;
mod connection;
mod ledger;
mod limit;
mod redemption;
mod refusal;
pub(crate) mod request;
mod served;
mod signers;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::Client;
use serde_json::{Map, Value};
use spanwire_api::{AccessGrant, Claim};
use spanwire_plan::offer::{Allowance, Offer};
use spanwire_plan::plan::Event;
use subtle::Choice;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::telemetry::{Metrics, Redemption};

pub use answer::Answer;
pub use refusal::Refusal;
pub use request::Request;
pub use served::{ServeCertificate, Served};

#[cfg(any(test, fuzzing))]
pub(crate) use connection::talk;

use ledger::Ledgers;
use limit::Limits;
use signers::Signers;

/// How long one redemption may take, so that there is time left to say that it failed.
const REDEMPTION: Duration = Duration::from_secs(8);
/// How long a claim is kept, and its credential given again to whoever made it.
const MEMORY: SignedDuration = SignedDuration::from_hours(1);
/// How many credentials are made at once: making them keeps a processor busy.
const MAKERS: usize = 4;

/// A grant, as far as a redemption depends on it.
#[derive(Clone, Debug, PartialEq)]
pub struct GrantRecord {
    /// The grant's namespace.
    pub namespace: String,
    /// The grant's name.
    pub name: String,
    /// The grant's uid: the path of its URL.
    pub uid: String,
    /// The revision that the rest was read at.
    pub resource_version: String,
    /// Name of the CA Secret that the grant asks for.
    pub issuer: Option<String>,
    /// How often it may be redeemed, and until when.
    pub allowance: Allowance,
    /// The latest redemptions.
    pub claims: Vec<Claim>,
}

/// A question about the grant with this uid that is answered at once, from memory.
pub type Ask<T> = Arc<dyn Fn(&str) -> T + Send + Sync>;

/// What a grant can give now.
#[derive(Clone, Debug, PartialEq)]
pub struct Granted {
    /// The grant.
    pub grant: GrantRecord,
    /// What its site has on offer, where there is one.
    pub offer: Option<Offer>,
    /// The revision of the Secret of the CA that signs, as the watch told it last.
    pub issuer_revision: Option<String>,
}

/// The fields of a grant's status that follow from a record that is about to be written; none where the record is not one
/// of what the stores know.
pub type Tell = Arc<dyn Fn(&GrantRecord) -> Map<String, Value> + Send + Sync>;

/// What tells of an event about a grant. It does not wait.
pub type Announce = Arc<dyn Fn(&GrantRecord, Event) + Send + Sync>;

/// Whom the server asks.
#[derive(Clone)]
pub struct Directory {
    /// Whether the rest can be believed: who has not seen everything yet does not know that a grant is not there.
    pub is_complete: Arc<dyn Fn() -> bool + Send + Sync>,
    /// SHA-256 of the code of the grant with this uid, or of anything and a no where there is no such grant, or no code
    /// yet. By itself, so that looking up a grant that exists takes as long as one that does not.
    pub code: Ask<([u8; 32], Choice)>,
    /// What the grant with this uid can give; none also where this operator does not control its namespace.
    pub grant: Ask<Option<Granted>>,
    /// What else a status says.
    pub told: Tell,
    /// Tells what a person would want to know later about a grant.
    pub announce: Announce,
}

/// On what terms credentials are given out.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Lifetime, in seconds.
    pub leaf_seconds: i64,
    /// RSA-2048 rather than P-256.
    pub rsa: bool,
}

/// The grant server.
pub struct Server {
    client: Client,
    clock: Clock,
    directory: Directory,
    terms: Terms,
    metrics: Arc<Metrics>,
    ledgers: Ledgers,
    signers: Signers,
    limits: Limits,
    makers: Semaphore,
}

impl GrantRecord {
    /// The record of a grant as the API server has it. Its code is not in it.
    pub fn of(grant: &AccessGrant) -> Self {
        let metadata = &grant.metadata;
        Self {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            resource_version: metadata.resource_version.clone().unwrap_or_default(),
            issuer: grant.spec.issuer.clone(),
            allowance: Allowance::of(grant),
            claims: grant
                .status
                .as_ref()
                .map(|status| status.claims.clone())
                .unwrap_or_default(),
        }
    }

    /// The grant with this record's count and claims.
    pub fn counted(&self, grant: &AccessGrant) -> AccessGrant {
        let mut grant = grant.clone();
        let status = grant.status.get_or_insert_default();
        status.redemptions = Some(self.allowance.made);
        status.claims.clone_from(&self.claims);
        grant
    }

    /// Whether a repeat of this claim would be one.
    fn holds(&self, claim: &str, now: Timestamp) -> bool {
        let mut known = self.claims.iter().filter(|claim| is_remembered(claim, now));
        known.any(|known| known.hash == claim)
    }
}

/// Whether a claim is young enough for its credential to be asked for again.
fn is_remembered(claim: &Claim, now: Timestamp) -> bool {
    let time = claim.time.parse::<Timestamp>();
    time.is_ok_and(|time| now.duration_since(time) < MEMORY)
}

impl Server {
    /// A server that has not been asked anything yet.
    pub fn new(
        client: Client,
        clock: Clock,
        directory: Directory,
        terms: Terms,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            signers: Signers::new(client.clone()),
            client,
            clock,
            directory,
            terms,
            metrics,
            ledgers: Ledgers::default(),
            limits: Limits::default(),
            makers: Semaphore::new(MAKERS),
        }
    }

    /// Serves until `stop`, and a little longer what has begun by then. The certificate is the one that `served`
    /// holds when a client knocks; without one, nobody gets in.
    pub async fn run(
        self: Arc<Self>,
        listener: TcpListener,
        served: &Served,
        stop: CancellationToken,
    ) {
        connection::accept(self, listener, served.tls(), stop).await;
    }

    /// Answers one well-formed request from this address.
    pub async fn redeem(&self, source: IpAddr, request: Request) -> Result<Answer, Refusal> {
        let redemption = timeout(REDEMPTION, self.redemption(source, &request)).await;
        let answer = redemption.unwrap_or(Err(Refusal::Unavailable));
        let result = match &answer {
            Ok(answer) if answer.is_repeated => "repeated",
            Ok(_) => "granted",
            Err(refusal) => refusal.result(),
        };
        self.metrics
            .redemptions
            .get_or_create(&Redemption { result })
            .inc();
        answer
    }
}

#[cfg(test)]
mod tests;
