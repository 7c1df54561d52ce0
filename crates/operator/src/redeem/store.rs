//! How is an answer kept, so that it is not lost again?

use std::time::Duration;

use k8s_openapi::ByteString;
use kube::api::{DynamicObject, PostParams};
use kube::{Api, Client};
use serde_json::json;
use spanwire_plan::facts::{CA_FILE, CERTIFICATE_FILE, KEY_FILE};
use spanwire_plan::labels;
use spanwire_plan::plan::Redeem;
use spanwire_plan::settle::FIELD_MANAGER;
use thiserror::Error;
use tokio::time::{Instant, sleep};

use super::answer::Received;
use crate::error::{CallServer, within};

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
    #[error("the API server does not take the Secret with the answer")]
    Call(#[source] CallServer),
}

/// Stores the answer in the Secret that the plan wants.
pub(super) async fn store(
    client: &Client,
    redeem: &Redeem,
    received: &Received,
) -> Result<(), StoreAnswer> {
    let secret = secret(redeem, received)?;
    let resource = redeem.secret.kind.resource();
    let api = Api::<DynamicObject>::namespaced_with(client.clone(), &redeem.namespace, &resource);
    let until = Instant::now() + PATIENCE;
    let mut pause = PAUSE.0;
    loop {
        let error = match post(&api, redeem, &secret).await {
            Ok(()) => return Ok(()),
            Err(StoreAnswer::Call(error)) => error,
            Err(error) => return Err(error),
        };
        tracing::debug!(token = redeem.token, namespace = redeem.namespace, %error, "Answer not stored yet");
        // The namespace is going: there is nothing to store it for.
        if error.is_stale() || Instant::now() + pause > until {
            return Err(StoreAnswer::Call(error));
        }
        sleep(pause).await;
        pause = PAUSE.1.min(pause * 2);
    }
}

async fn post(
    api: &Api<DynamicObject>,
    redeem: &Redeem,
    secret: &DynamicObject,
) -> Result<(), StoreAnswer> {
    let params = PostParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    };
    let Err(error) = within(api.create(&params, secret)).await else {
        return Ok(());
    };
    if error.reason() != "AlreadyExists" {
        return Err(StoreAnswer::Call(error));
    }
    // An earlier try of ours whose answer was lost, or somebody else's.
    let live = within(api.get_metadata(&redeem.token))
        .await
        .map_err(StoreAnswer::Call)?;
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

fn secret(redeem: &Redeem, received: &Received) -> Result<DynamicObject, StoreAnswer> {
    let mut secret: DynamicObject =
        serde_json::from_value(redeem.secret.object.clone()).map_err(|_| StoreAnswer::Write)?;
    let links = serde_json::to_string(&received.links).map_err(|_| StoreAnswer::Write)?;
    let annotations = secret.metadata.annotations.get_or_insert_default();
    annotations.insert(labels::LINKS.to_owned(), links);
    annotations.insert(labels::TOKEN.to_owned(), redeem.uid.clone());
    let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
    let Some(object) = secret.data.as_object_mut() else {
        return Err(StoreAnswer::Write);
    };
    object.insert(
        "data".to_owned(),
        json!({
            CA_FILE: bytes(&received.ca),
            CERTIFICATE_FILE: bytes(&received.certificate),
            KEY_FILE: bytes(&received.key),
        }),
    );
    Ok(secret)
}
