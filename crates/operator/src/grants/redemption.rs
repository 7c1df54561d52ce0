//! In which order is a redemption made?
//!
//! Authenticate, make, record, answer. Everything that can fail comes before the record, so that a failure costs the
//! grant nothing.

use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::jiff::SignedDuration;
use sha2::{Digest, Sha256};
use spanwire_plan::plan::Event;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::ledger::Recorded;
use super::request::is_name;
use super::{Answer, GrantRecord, Granted, Refusal, Request, Server, answer};
use crate::pki::{self, Authority, Credential, MakeCredential};
use crate::text;

/// How far a certificate's start is dated back, for clocks that run behind (`design.md` §5).
const BACK_DATED: SignedDuration = SignedDuration::from_mins(10);

impl Server {
    pub(super) async fn redemption(
        &self,
        source: IpAddr,
        request: &Request,
    ) -> Result<Answer, Refusal> {
        if !(self.directory.is_complete)() {
            return Err(Refusal::Unavailable);
        }
        let granted = self.authenticate(source, request)?;
        let grant = &granted.grant;
        let name = request.name.as_deref().unwrap_or(&grant.name);
        if !is_name(name) {
            return Err(Refusal::BadHeader("name"));
        }
        let subject = request.subject.as_deref().unwrap_or(name);
        let claim = claim(&request.nonce, name, subject);
        let now = self.clock.now();
        if grant.holds(&claim, now) {
            if self.limits.is_insistent(source) {
                return Err(Refusal::TooMany);
            }
        } else if let Some(refusal) = grant.allowance.refusal(now) {
            // Whoever knows the code may be told once more, but not without end.
            let is_excessive = self.limits.is_excessive(source);
            return Err(if is_excessive {
                Refusal::TooMany
            } else {
                self.refused(grant, refusal.into())
            });
        }
        if !self.limits.may_redeem() {
            return Err(Refusal::TooMany);
        }
        let body = self.make(&granted, name, subject).await?;
        let recorded = self
            .record(grant, &claim)
            .await
            .map_err(|refusal| self.refused(grant, refusal))?;
        if let Recorded::New(count) = recorded {
            let allowed = grant.allowance.allowed;
            tracing::info!(
                grant = grant.name,
                namespace = grant.namespace,
                token = name,
                count,
                allowed,
                "Redeemed"
            );
            let note = format!("redeemed as \"{name}\", {count} of {allowed}");
            let reason = "Redeemed".to_owned();
            (self.directory.announce)(
                grant,
                Event {
                    warning: false,
                    reason,
                    note,
                },
            );
        }
        Ok(Answer {
            body,
            is_repeated: recorded == Recorded::Repeated,
        })
    }

    /// The grant that the request names, if it knows the grant's code. A grant that does not exist is compared like one
    /// that does; a try too many is told so, whatever it was.
    pub(super) fn authenticate(
        &self,
        source: IpAddr,
        request: &Request,
    ) -> Result<Granted, Refusal> {
        let shown = Sha256::digest(&*request.code);
        let (wanted, is_known) = (self.directory.code)(&request.grant);
        let is_right = shown.as_slice().ct_eq(&wanted) & is_known;
        if bool::from(is_right) {
            // Between the two look-ups the grant may have gone.
            return (self.directory.grant)(&request.grant).ok_or(Refusal::UnknownGrant);
        }
        if self.limits.is_excessive(source) {
            return Err(Refusal::TooMany);
        }
        Err(if bool::from(is_known) {
            Refusal::WrongCode
        } else {
            Refusal::UnknownGrant
        })
    }

    /// The whole answer, in memory.
    async fn make(
        &self,
        granted: &Granted,
        name: &str,
        subject: &str,
    ) -> Result<Zeroizing<String>, Refusal> {
        let grant = &granted.grant;
        let Some(offer) = &granted.offer else {
            return Err(Refusal::NoSite(grant.namespace.clone()));
        };
        let links = offer.links(name)?;
        // A claim would be spent on what cannot be made.
        if !links.iter().all(|link| is_name(&link.name)) {
            return Err(Refusal::BadHeader("name"));
        }
        let issuer = offer.issuer(grant.issuer.as_deref());
        if issuer.is_empty() {
            return Err(Refusal::NoIssuer);
        }
        let revision = granted.issuer_revision.as_deref();
        let authority = self.signers.get(&grant.namespace, issuer, revision).await?;
        let credential = self.credential(subject, authority).await.map_err(|error| {
            let (grant, namespace) = (&grant.name, &grant.namespace);
            tracing::warn!(grant, namespace, issuer, %error, "Could not make a credential");
            match error {
                MakeAnswer::Credential(
                    MakeCredential::UseSigner(_) | MakeCredential::Verify(_),
                ) => Refusal::NoIssuer,
                _ => Refusal::Failed,
            }
        })?;
        answer::yaml(name, &credential, links)
    }

    async fn credential(
        &self,
        subject: &str,
        authority: Arc<Authority>,
    ) -> Result<Credential, MakeAnswer> {
        let _place = self.makers.acquire().await?;
        let subject = subject.to_owned();
        let now = self.clock.now();
        let terms = self.terms;
        let made = tokio::task::spawn_blocking(move || {
            let end = now.checked_add(SignedDuration::from_secs(terms.leaf_seconds));
            let start = now.checked_sub(BACK_DATED);
            let (Ok(start), Ok(end)) = (start, end) else {
                return Err(MakeCredential::WriteTime(now));
            };
            pki::client_credential(&subject, &authority, start, end, terms.rsa)
        });
        Ok(made.await??)
    }

    /// Raises the alarm where a refusal may mean a theft: the code is right and the grant is used up, so either the
    /// rightful client comes too late, or somebody else does.
    fn refused(&self, grant: &GrantRecord, refusal: Refusal) -> Refusal {
        if refusal == Refusal::UsedUp {
            tracing::warn!(
                grant = grant.name,
                namespace = grant.namespace,
                "Used-up grant tried again"
            );
            let note = "somebody who knows the code has tried this grant, which is used up: if the rightful site was \
                        refused, its token was used by another"
                .to_owned();
            let reason = "UsedUpGrantTried".to_owned();
            (self.directory.announce)(
                grant,
                Event {
                    warning: true,
                    reason,
                    note,
                },
            );
        }
        refusal
    }
}

/// Why there is no credential.
#[derive(Debug, thiserror::Error)]
enum MakeAnswer {
    #[error(transparent)]
    Credential(#[from] MakeCredential),
    #[error("the thread that made it was ended: {0}")]
    Join(#[from] tokio::task::JoinError),
    #[error("nobody makes credentials any more")]
    Close(#[from] tokio::sync::AcquireError),
}

/// What a claim is known by: who asks, for what. Each part after its length, so that no two are the same by accident.
fn claim(nonce: &str, name: &str, subject: &str) -> String {
    let mut hash = Sha256::new();
    for part in [nonce, name, subject] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    text::hex(&hash.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_differ_by_every_part() {
        let base = claim("a", "b", "c");
        assert_eq!(base, claim("a", "b", "c"));
        for other in [
            claim("x", "b", "c"),
            claim("a", "x", "c"),
            claim("a", "b", "x"),
            claim("ab", "", "c"),
        ] {
            assert_ne!(base, other);
        }
    }
}
