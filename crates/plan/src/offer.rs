//! What does a namespace's site offer to whoever redeems a grant of it?

use spanwire_api::Endpoint;

use crate::site::shape::{default_issuer, is_edge};
use crate::world::World;

/// What a redemption depends on besides its grant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// Whether it is an edge site, which nobody can link to.
    pub edge: bool,
    /// Name of the Secret of the CA that signs, unless the grant names another.
    pub issuer: String,
    /// Where the site is reached, as its status publishes it.
    pub endpoints: Vec<Endpoint>,
}

/// The offer of the active site; none where there is no site.
pub fn offer(world: &World) -> Option<Offer> {
    let site = world.site()?;
    Some(Offer {
        edge: is_edge(site),
        issuer: default_issuer(site).to_owned(),
        endpoints: site
            .status
            .as_ref()
            .map(|status| status.endpoints.clone())
            .unwrap_or_default(),
    })
}
