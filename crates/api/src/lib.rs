//! What can a user of Spanwire write, and what does Spanwire tell him?
//!
//! One file a kind: its spec, its status, and the reasons that its conditions may carry. The specs are the union of
//! the two API versions that are served, `v2alpha1` and the older `v1alpha1`, so that no conversion ever stands
//! between a user and a site. Doc comments here are what `kubectl explain` prints.
//!
//! Nothing here behaves: no client, no clock, no decision.

#![allow(
    clippy::duplicated_attributes,
    reason = "a kind has several printer columns, each with a type of its own"
)]

pub mod access_grant;
pub mod access_token;
pub mod certificate;
mod check;
pub mod condition;
mod crd;
pub mod endpoint;
pub mod link;
pub mod router_access;
pub mod secured_access;
pub mod site;

pub use access_grant::{AccessGrant, AccessGrantSpec, AccessGrantStatus, Claim};
pub use access_token::{AccessToken, AccessTokenSpec, AccessTokenStatus};
pub use certificate::{Certificate, CertificateSpec, CertificateStatus};
pub use condition::Condition;
pub use crd::{CATEGORY, GROUP, OLD_VERSION, VERSION, crds};
pub use endpoint::Endpoint;
pub use link::{Link, LinkSpec, LinkStatus};
pub use router_access::{RouterAccess, RouterAccessRole, RouterAccessSpec, RouterAccessStatus};
pub use secured_access::{
    SecuredAccess, SecuredAccessPort, SecuredAccessSpec, SecuredAccessStatus,
};
pub use site::{Controller, NetworkLink, NetworkService, NetworkSite, Site, SiteSpec, SiteStatus};
