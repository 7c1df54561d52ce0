//! How is all that is in a namespace read, again and again? Without kubectl, which takes a hundred times as long to start.

use anyhow::{Context as _, Result};
use futures::future::try_join_all;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::Value;
use tokio::runtime::Builder;

use crate::kubectl::{Kubectl, text};

/// The objects of these resources, such as `services` or `sites.skupper.io`, in a namespace.
pub fn objects(kubectl: &Kubectl, namespace: &str, resources: &[&str]) -> Result<Vec<Value>> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let objects = async {
        let file = Kubeconfig::read_from(kubectl.kubeconfig())?;
        let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
        let client = Client::try_from(config)?;
        let lists = resources
            .iter()
            .map(|resource| list(&client, namespace, resource));
        let lists = try_join_all(lists).await?;
        Ok(lists.into_iter().flatten().collect())
    };
    runtime.block_on(objects)
}

async fn list(client: &Client, namespace: &str, resource: &str) -> Result<Vec<Value>> {
    let (name, group) = resource.split_once('.').unwrap_or((resource, ""));
    let version = match group {
        "" => "api/v1".to_owned(),
        "skupper.io" => format!("apis/{group}/v2alpha1"),
        group => format!("apis/{group}/v1"),
    };
    let request = hyper::Request::get(format!("/{version}/namespaces/{namespace}/{name}"));
    let list: Result<Value, _> = client.request(request.body(Vec::new())?).await;
    let mut list = list.with_context(|| format!("list {resource} in {namespace}"))?;
    // In a list only those of custom kinds say what they are.
    let kind = text(&list["kind"]).trim_end_matches("List").to_owned();
    let Some(items) = list["items"].as_array_mut() else {
        return Ok(Vec::new());
    };
    for item in &mut *items {
        item["kind"] = Value::from(kind.as_str());
    }
    Ok(std::mem::take(items))
}
