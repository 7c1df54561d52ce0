//! The process beside the router.
mod args;
mod clock;
mod credentials;
mod error;
mod management;
mod mount;
fn main() {}
