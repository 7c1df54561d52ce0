//! Does the adaptor keep a router at what is wanted, whatever happens?
//!
//! Each test has an adaptor process, routers and an API server of its own, on ports and in folders
//! of its own. The routers are stand-ins, or real ones where `SPANWIRE_SKROUTERD` names a binary;
//! what only these can do is skipped without one, and says so.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests, helpers included"
)]

mod api;
mod bed;
mod client;
mod drift;
mod echo;
mod folder;
mod gate;
mod hostile;
mod isolation;
mod liar;
mod likeness;
mod pki;
mod rotation;
mod router;
mod site;
mod stream;
mod survive;
mod walk;
