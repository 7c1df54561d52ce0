//! How is what the plan asks for seen, done and told?
//!
//! The shell of the house: watches come in, writes go out, and every decision between them is
//! [`spanwire_plan`]'s. See ARCHITECTURE.md for the tour.

pub mod act;
pub mod args;
mod bucket;
pub mod clock;
pub mod controllers;
pub mod door;
pub mod driver;
pub mod dying;
pub mod error;
pub mod facts;
pub mod grants;
pub mod lease;
pub mod patience;
pub mod pki;
pub mod publish;
pub mod redeem;
pub mod run;
pub mod stores;
pub mod telemetry;
pub mod text;
mod wiped;

/// What a fuzzer may do to us.
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
#[cfg(any(test, fuzzing))]
mod mock;
