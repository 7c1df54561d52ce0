//! How is what the plan asks for seen, done and told?
//!
//! The shell of the house: watches come in, writes go out, and every decision between them is
//! [`spanwire_plan`]'s. See ARCHITECTURE.md for the tour.

pub mod facts;
pub mod pki;
pub mod text;
