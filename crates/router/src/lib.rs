//! What do the operator and the adaptor say to each other about a router?
//!
//! The operator writes a [`config::Document`] and [`credentials::Profiles`]; the adaptor reads
//! them, compares what is wanted with what a running router has ([`diff::diff`]), and answers with
//! a [`report::Report`]. Everything here is plain data and pure functions: no Kubernetes, no
//! sockets, no clock.
#![warn(missing_docs)]

mod attribute;
pub mod config;
pub mod credentials;
pub mod diff;
pub mod entity;
pub mod report;
