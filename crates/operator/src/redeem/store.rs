//! How is an answer kept, so that it is not lost again?

use std::time::Duration;

use kube::api::{DynamicObject, PostParams};
use kube::{Api, Client};
use spanwire_plan::labels;
use spanwire_plan::plan::Redeem;
use spanwire_plan::settle::FIELD_MANAGER;
use thiserror::Error;
use tokio::time::{Instant, sleep};

use super::answer::Received;
use crate::act::credential_data;
use crate::dying::Dying;
use crate::error::{CallServer, within};
use crate::wiped::Wiped;

/// How long an answer is held in memory while the API server does not take it. A claim is lost with it at a server
/// that knows no repeats, so this is long; a place in the pool is taken meanwhile, so it is not longer.
const PATIENCE: Duration = Duration::from_mins(2);
/// Pauses between tries: the first, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// Why an answer was not stored. The texts are shown to people.
#[derive(Debug, Error)]
pub(super) enum StoreAnswer {
    #[error(
        "a Secret of the token's name exists, and is not this token's: delete or rename either"
    )]
    TakeName,
    #[error("the Secret with the answer could not be written")]
    Write,
    #[error("a Secret of the token's name comes and goes")]
    Vanish,
    #[error("the API server does not take the Secret with the answer")]
    Call(#[source] CallServer),
}

impl StoreAnswer {
    /// Whether another try would end in the same way.
    fn is_final(&self) -> bool {
        match self {
            Self::TakeName | Self::Write => true,
            Self::Vanish => false,
            // The namespace is going: there is nothing to store it for.
            Self::Call(error) => error.is_stale(),
        }
    }
}

/// Stores the answer in the Secret that the plan wants.
pub(super) async fn store(
    client: &Client,
    redeem: &Redeem,
    received: &Received,
    dying: &Dying,
) -> Result<(), StoreAnswer> {
    let secret = secret(redeem, received)?;
    let resource = redeem.secret.kind.resource();
    let api = Api::<DynamicObject>::namespaced_with(client.clone(), &redeem.namespace, &resource);
    let until = Instant::now() + PATIENCE;
    let mut pause = PAUSE.0;
    loop {
        let Err(error) = post(&api, redeem, &secret, dying).await else {
            return Ok(());
        };
        tracing::debug!(token = redeem.token, namespace = redeem.namespace, %error, "Answer not stored yet");
        if error.is_final() || Instant::now() + pause > until {
            return Err(error);
        }
        sleep(pause).await;
        pause = PAUSE.1.min(pause * 2);
    }
}

async fn post(
    api: &Api<DynamicObject>,
    redeem: &Redeem,
    secret: &DynamicObject,
    dying: &Dying,
) -> Result<(), StoreAnswer> {
    let params = PostParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    };
    let answer = within(api.create(&params, secret)).await.map(Wiped::from);
    dying.hear(&redeem.namespace, &answer);
    let Err(error) = answer else {
        return Ok(());
    };
    if error.reason() != "AlreadyExists" {
        return Err(StoreAnswer::Call(error));
    }
    // An earlier try of ours whose answer was lost, or somebody else's.
    let live = match within(api.get_metadata(&redeem.token)).await {
        Ok(live) => live,
        Err(error) if error.code() == Some(404) => return Err(StoreAnswer::Vanish),
        Err(error) => return Err(StoreAnswer::Call(error)),
    };
    let token = live
        .metadata
        .annotations
        .as_ref()
        .and_then(|map| map.get(labels::TOKEN));
    if token == Some(&redeem.uid) {
        Ok(())
    } else {
        Err(StoreAnswer::TakeName)
    }
}

pub(super) fn secret(
    redeem: &Redeem,
    received: &Received,
) -> Result<Wiped<DynamicObject>, StoreAnswer> {
    let secret: DynamicObject =
        serde_json::from_value(redeem.secret.object.clone()).map_err(|_| StoreAnswer::Write)?;
    let mut secret = Wiped::from(secret);
    let links = serde_json::to_string(&received.links).map_err(|_| StoreAnswer::Write)?;
    let annotations = secret.metadata.annotations.get_or_insert_default();
    annotations.insert(labels::LINKS.to_owned(), links);
    annotations.insert(labels::TOKEN.to_owned(), redeem.uid.clone());
    secret.data["data"] = credential_data(&received.credential);
    Ok(secret)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use zeroize::Zeroizing;

    use super::super::tests::redeem;
    use super::*;
    use crate::mock::{ApiServer, Fault};
    use crate::pki::Credential;

    const SECRET: &str = "/api/v1/namespaces/a/secrets/t";

    /// Stores an answer where a Secret of the token with this uid is in the way, which the first `unseen` looks do not
    /// find. Gives back how often the answer was sent.
    async fn stored(uid: &str, unseen: usize) -> (Result<(), StoreAnswer>, usize) {
        let server = ApiServer::new();
        server.put(
            SECRET,
            json!({
                "apiVersion": "v1", "kind": "Secret",
                "metadata": {"name": "t", "namespace": "a", "annotations": {labels::TOKEN: uid}},
            }),
        );
        server.fault(move |call| {
            if call.method == "GET" && call.before < unseen {
                Fault::Refuse(404)
            } else {
                Fault::None
            }
        });
        let received = Received {
            credential: Credential {
                ca: String::new(),
                certificate: String::new(),
                key: Zeroizing::default(),
            },
            links: Vec::new(),
        };
        let answer = store(&server.client(), &redeem("t"), &received, &Dying::default()).await;
        (answer, server.count("POST", "/secrets"))
    }

    /// It was given up for lost.
    #[tokio::test(start_paused = true)]
    async fn an_answer_is_sent_again_when_what_was_in_its_way_is_gone() {
        let (answer, posts) = stored("uid of t", 1).await;
        assert!(answer.is_ok());
        assert_eq!(posts, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_not_sent_for_ever() {
        let begun = Instant::now();
        let (answer, _) = stored("uid of t", usize::MAX).await;
        assert!(matches!(answer, Err(StoreAnswer::Vanish)));
        assert!(begun.elapsed() <= PATIENCE);
        let (answer, posts) = stored("somebody", 0).await;
        assert!(matches!(answer, Err(StoreAnswer::TakeName)));
        assert_eq!(posts, 1);
    }
}
