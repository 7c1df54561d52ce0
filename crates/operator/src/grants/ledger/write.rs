//! How does a ledger get to the API server, and back?

use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Resource};
use serde_json::{Value, json};
use spanwire_api::{AccessGrant, Claim};
use spanwire_plan::Seen;
use spanwire_plan::settle::FIELD_MANAGER;

use crate::error::{CallServer, within};
use crate::grants::{GrantRecord, Refusal, Server, is_remembered};

/// How many claims are kept.
const CLAIMS: usize = 256;

/// What came of one write.
pub(super) enum Written {
    Done(GrantRecord),
    /// Not done, or not known: read, and decide again.
    Unclear,
}

impl Server {
    /// Records further claims on a grant, where it is still the one that is known. In the same write the status says what
    /// follows from that, so that nobody has to write it afterwards.
    pub(super) async fn write(
        &self,
        record: &GrantRecord,
        claims: &[String],
    ) -> Result<Written, Refusal> {
        let mut written = record.clone();
        written.claim(claims, self.clock.now());
        let mut patch = vec![
            json!({"op": "replace", "path": "/metadata/resourceVersion", "value": record.resource_version}),
        ];
        let counted = [
            ("redemptions".to_owned(), json!(written.allowance.made)),
            ("claims".to_owned(), json!(written.claims)),
        ];
        let fields = (self.directory.told)(&written).into_iter().chain(counted);
        patch.extend(fields.map(|(field, value)| {
            json!({"op": "add", "path": format!("/status/{field}"), "value": value})
        }));
        let patch = serde_json::from_value(Value::Array(patch)).map_err(|_| Refusal::Failed)?;
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
    pub(super) async fn read_back(
        &self,
        grant: &GrantRecord,
    ) -> Result<Option<GrantRecord>, Refusal> {
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

impl GrantRecord {
    /// Counts further claims, and remembers them: the newest, and none older than an hour.
    fn claim(&mut self, claims: &[String], now: Timestamp) {
        self.allowance.made += i64::try_from(claims.len()).unwrap_or(i64::MAX);
        self.claims.retain(|claim| is_remembered(claim, now));
        self.claims.extend(claims.iter().map(|hash| Claim {
            hash: hash.clone(),
            time: now.to_string(),
        }));
        let surplus = self.claims.len().saturating_sub(CLAIMS);
        self.claims.drain(..surplus);
    }
}

/// Whether a write may be made again: it met another one, or an API server that was not well, and may have been done.
fn is_unclear(error: &CallServer) -> bool {
    error
        .code()
        .is_none_or(|code| matches!(code, 409 | 429 | 500..))
}

#[cfg(test)]
mod tests {
    use spanwire_plan::offer::Allowance;

    use super::*;

    const NOW: &str = "2026-01-01T12:00:00Z";

    fn claim(hash: &str, time: &str) -> Claim {
        Claim {
            hash: hash.to_owned(),
            time: time.to_owned(),
        }
    }

    fn claimed(known: Vec<Claim>, new: &[&str]) -> GrantRecord {
        let mut record = GrantRecord {
            namespace: "n".to_owned(),
            name: "g".to_owned(),
            uid: "u".to_owned(),
            resource_version: "1".to_owned(),
            issuer: None,
            allowance: Allowance {
                allowed: 1000,
                made: 7,
                end: None,
            },
            claims: known,
        };
        let new: Vec<String> = new.iter().map(|&new| new.to_owned()).collect();
        record.claim(&new, NOW.parse().unwrap());
        record
    }

    #[test]
    fn the_newest_claims_are_kept_for_an_hour() {
        let known = vec![
            claim("old", "2026-01-01T10:59:59Z"),
            claim("junk", "yesterday"),
            claim("recent", "2026-01-01T11:00:01Z"),
            claim("ahead", "2027-01-01T11:00:01Z"),
        ];
        let record = claimed(known, &["new", "newer"]);
        let hashes: Vec<&str> = record
            .claims
            .iter()
            .map(|claim| claim.hash.as_str())
            .collect();
        assert_eq!(hashes, ["recent", "ahead", "new", "newer"]);
        assert_eq!(record.claims[3].time, NOW);
        assert_eq!(record.allowance.made, 9);
    }

    #[test]
    fn no_more_claims_are_kept_than_a_status_has_room_for() {
        let many = (0..300)
            .map(|n| claim(&n.to_string(), "2026-01-01T11:30:00Z"))
            .collect();
        let kept = claimed(many, &["new"]).claims;
        assert_eq!(kept.len(), 256);
        assert_eq!(
            (kept[0].hash.as_str(), kept[255].hash.as_str()),
            ("45", "new")
        );
    }
}
