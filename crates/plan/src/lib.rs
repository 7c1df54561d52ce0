//! Which acts are needed, and which status is true, in one namespace?
//!
//! The study of the house: a [`World`] and an [`Env`] go in, a [`Plan`] comes out. Nothing here can wait, send,
//! read a clock or roll a die: the crate has no dependency that could. See ARCHITECTURE.md for the tour.

pub mod credential;
pub mod env;
pub mod facts;
pub mod kinds;
pub mod labels;
pub mod names;
pub mod offer;
pub mod plan;
pub mod report;
pub mod rights;
pub mod seen;
pub mod settle;
pub mod world;

mod access_grant;
mod access_token;
mod certificate;
mod controller;
mod duration;
mod link;
mod router_access;
mod secured_access;
mod site;

pub use env::{Config, Env};
pub use kinds::Kind;
pub use plan::{Act, Plan};
pub use seen::Seen;
pub use world::World;
