//! Do containers that die while the API server answers nothing come back as they were?
//!
//! A program of its own: while it runs, no other test could.

use std::time::Duration;

use anyhow::{Context as _, Result};
use spanwire_e2e::processes::{self, ADAPTOR, ROUTER};
use spanwire_e2e::{scenario, wait};

const INTER_ROUTER: u16 = 55671;
/// The second death of a container within ten minutes costs 10 s by the kubelet's rules, the third 20 s.
const BACK_WITHIN: Duration = Duration::from_mins(1);

#[test]
fn containers_that_die_come_back_without_the_api_server() -> Result<()> {
    scenario::linked("pod-deaths", |bed, scenario| {
        let east = scenario.router_pod(&scenario.east)?;
        let west = scenario.router_pod(&scenario.west)?;
        let state = bed.kubeconfig.parent().context("a folder")?;
        let api_server = processes::of_cluster("kube-apiserver", &state.to_string_lossy())?;
        let paused = api_server.pause()?;
        for names in [&[&ROUTER[..]][..], &[&ADAPTOR], &[&ROUTER, &ADAPTOR]] {
            for uid in [&west, &east] {
                for name in names {
                    processes::of_pod(uid, name)?.kill()?;
                }
                is_whole(&west, &east).with_context(|| format!("after the death of {names:?}"))?;
            }
        }
        drop(paused);
        scenario.is_up().map(drop)
    })
}

/// The west router listens and the east one is connected, as `/proc` tells.
fn is_whole(west: &str, east: &str) -> Result<()> {
    wait::until("the live state to be as it was", BACK_WITHIN, || {
        let is_open = processes::of_pod(west, &ROUTER)?.listens(INTER_ROUTER);
        let is_connected = !processes::of_pod(east, &ROUTER)?.connections().is_empty();
        Ok((is_open && is_connected).then_some(()))
    })
}
