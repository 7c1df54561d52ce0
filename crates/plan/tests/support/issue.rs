//! What stands in a Secret once the workshop has issued into it?
//!
//! Keys are names here: whoever's authority id is a certificate's key id was signed with its key.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use spanwire_plan::facts::{CertificateFacts, FileFacts, PairFacts, SecretFacts};
use spanwire_plan::labels;
use spanwire_plan::plan::{Issue, ObjectKind};
use spanwire_router::credentials::digest;

use super::Cluster;
use super::server::Refused;

impl Cluster {
    pub(super) fn issue(&mut self, issue: &Issue) -> Result<(), Refused> {
        let name = issue.secret.name().to_owned();
        let old = self.world.secrets.get(&name).cloned();
        match &issue.live {
            Some(live) => self.check(ObjectKind::Secret, &name, live)?,
            None if old.is_some() => return Err(Refused(format!("{name} exists"))),
            None => assert!(issue.legacy.is_empty(), "a legacy of nothing"),
        }
        let signer = match &issue.signer {
            None => None,
            Some(source) => {
                let facts = self.world.secrets.get(&source.secret);
                let moved = || Refused(format!("{} has moved on", source.secret));
                let facts = facts.ok_or_else(moved)?;
                if facts.metadata.resource_version.as_deref() != Some(&source.resource_version) {
                    return Err(moved());
                }
                Some(facts.clone())
            }
        };
        let before = old.clone().unwrap_or_default();
        let own = if issue.legacy.pair {
            before.certificate().unwrap().clone()
        } else {
            self.made(issue, signer.as_ref())
        };
        let (chain, roots) = self.surroundings(issue, &own, signer.as_ref(), &before);
        let mut metadata = self.metadata(&issue.secret, old.as_ref().map(|old| &old.metadata));
        let mut annotations = before.metadata.annotations.unwrap_or_default();
        annotations.extend(metadata.annotations.take().unwrap_or_default());
        if !issue.legacy.pair {
            annotations.insert(labels::ISSUED.to_owned(), own.fingerprint.clone());
        }
        metadata.annotations = Some(annotations);
        metadata.resource_version = Some(self.tick());
        self.world
            .secrets
            .insert(credential(metadata, &chain, &roots));
        Ok(())
    }

    fn made(&mut self, issue: &Issue, signer: Option<&SecretFacts>) -> CertificateFacts {
        let subject: String = issue.subject.chars().take(64).collect();
        let ca = signer.map(|signer| signer.certificate().unwrap());
        let issuer = ca.map_or(subject.clone(), |ca| ca.subject.clone());
        let is_ip = |host: &&String| host.parse::<std::net::IpAddr>().is_ok();
        let made = self.certificate(&subject, &issuer, ca.is_none());
        CertificateFacts {
            dns: issue.hosts.iter().cloned().collect(),
            ips: issue.hosts.iter().filter(is_ip).cloned().collect(),
            client: issue.client,
            server: issue.server,
            not_before: issue.not_before,
            not_after: ca.map_or(issue.not_after, |ca| issue.not_after.min(ca.not_after)),
            authority_id: ca.map_or(made.key_id.clone(), |ca| ca.key_id.clone()),
            ..made
        }
    }

    /// `tls.crt` and `ca.crt`.
    fn surroundings(
        &mut self,
        issue: &Issue,
        own: &CertificateFacts,
        signer: Option<&SecretFacts>,
        before: &SecretFacts,
    ) -> (Vec<CertificateFacts>, Vec<CertificateFacts>) {
        let is_root =
            |certificate: &CertificateFacts| certificate.key_id == certificate.authority_id;
        let mut chain = vec![own.clone()];
        let mut roots = Vec::new();
        match signer {
            None => roots.push(own.clone()),
            Some(ca) => {
                let ca = ca.chain().iter().chain(ca.trusted()).cloned();
                let (ca_roots, between): (Vec<_>, Vec<_>) = ca.partition(is_root);
                chain.extend(between);
                roots.extend(ca_roots);
            }
        }
        if issue.legacy.bridge {
            let old = before.certificate().unwrap();
            let bridge = self.certificate(&own.subject, &old.subject, true);
            chain.push(CertificateFacts {
                path_length: Some(0),
                key_id: own.key_id.clone(),
                authority_id: old.key_id.clone(),
                not_before: own.not_before,
                not_after: own.not_after.min(old.not_after),
                ..bridge
            });
        }
        let stays = |kept: &BTreeSet<String>, all: &[CertificateFacts]| -> Vec<_> {
            all.iter()
                .filter(|certificate| kept.contains(&certificate.fingerprint))
                .cloned()
                .collect()
        };
        chain.extend(
            stays(&issue.legacy.chain, before.chain())
                .into_iter()
                .filter(|kept| !is_root(kept)),
        );
        roots.extend(stays(&issue.legacy.roots, before.trusted()));
        (once(chain), once(roots))
    }
}

fn once(certificates: Vec<CertificateFacts>) -> Vec<CertificateFacts> {
    let mut seen = BTreeSet::new();
    certificates
        .into_iter()
        .filter(|certificate| seen.insert(certificate.fingerprint.clone()))
        .collect()
}

/// A credential's Secret, as facts.
pub(super) fn secret(
    metadata: ObjectMeta,
    leaf: &CertificateFacts,
    ca: &CertificateFacts,
) -> SecretFacts {
    credential(
        metadata,
        std::slice::from_ref(leaf),
        std::slice::from_ref(ca),
    )
}

/// The same, with a chain and several CAs.
pub(super) fn credential(
    metadata: ObjectMeta,
    chain: &[CertificateFacts],
    roots: &[CertificateFacts],
) -> SecretFacts {
    let file = |name: &str, each: usize, certificates: &[CertificateFacts]| {
        let content: String = certificates
            .iter()
            .map(|held| held.fingerprint.as_str())
            .collect();
        FileFacts {
            size: each * certificates.len(),
            sha256: digest(format!("{name} {content}").as_bytes()),
            certificates: certificates.to_vec(),
            error: None,
        }
    };
    let leaf = &chain[0];
    let key = FileFacts {
        size: 227,
        sha256: digest(format!("key of {}", leaf.fingerprint).as_bytes()),
        ..FileFacts::default()
    };
    let signers = chain
        .iter()
        .chain(roots)
        .filter(|signer| signer.key_id == leaf.authority_id);
    SecretFacts {
        metadata,
        type_: "kubernetes.io/tls".to_owned(),
        files: [
            ("ca.crt", file("ca.crt", 615, roots)),
            ("tls.key", key),
            ("tls.crt", file("tls.crt", 631, chain)),
        ]
        .map(|(name, file)| (name.to_owned(), file))
        .into(),
        pair: Some(PairFacts {
            key_error: None,
            chain_error: (!verifies(chain, roots)).then(|| "the chain leads nowhere".to_owned()),
            signers: signers.map(|signer| signer.fingerprint.clone()).collect(),
        }),
        profiles: None,
    }
}

/// Whether whoever trusts these roots can follow this chain.
pub(crate) fn verifies(chain: &[CertificateFacts], roots: &[CertificateFacts]) -> bool {
    let mut open = vec![&chain[0]];
    let mut seen = BTreeSet::new();
    while let Some(certificate) = open.pop() {
        if !seen.insert(&certificate.fingerprint) {
            continue;
        }
        if roots.contains(certificate)
            || roots
                .iter()
                .any(|root| root.key_id == certificate.authority_id)
        {
            return true;
        }
        open.extend(
            chain
                .iter()
                .filter(|issuer| issuer.key_id == certificate.authority_id),
        );
    }
    false
}
