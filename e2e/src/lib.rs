//! What does a test need to stand on a real Kubernetes, and leave nothing behind?
//!
//! [`cluster::Cluster`] is the heart: etcd, API server, controller manager, scheduler and, if asked for, a node with
//! containerd, kubelet, kube-proxy and CoreDNS, inside namespaces of the kernel that end with their owner.
//! [`bed::Bed`] is a cluster with the operator in it, shared by the test programs of one run.

pub mod audit;
pub mod bed;
pub mod binaries;
pub mod census;
pub mod cluster;
pub mod command;
pub mod control_plane;
pub mod credential;
pub mod daemon;
pub mod dice;
pub mod fault_proxy;
pub mod grant_server;
pub mod history;
pub mod http;
pub mod image;
pub mod images;
pub mod install;
pub mod interrupt;
pub mod keeper;
pub mod kubectl;
pub mod namespace;
pub mod network;
pub mod node;
pub mod null_writer;
pub mod operator;
pub mod peer;
pub mod pki;
pub mod processes;
pub mod reader;
pub mod real_router;
pub mod redeemer;
pub mod remains;
pub mod residue;
pub mod rest;
pub mod scenario;
pub mod scene;
pub mod site;
pub mod skip;
pub mod snapshot;
pub mod stopwatch;
pub mod tally;
pub mod tools;
pub mod topology;
pub mod upstream;
pub mod verifier;
pub mod wait;
pub mod workspace;

/// How a long task tells what it is doing now: a few words, told anew with each step.
pub type Say<'a> = &'a (dyn Fn(&str) + Sync);
