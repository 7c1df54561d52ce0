//! What is a client told that gets nothing?
//!
//! Statuses and texts are upstream's, because upstream's client shows them to a person
//! (`facts/skupper-v2.md` §7.2). Two things differ. A wrong code is told before anything that only the holder of the
//! code may know; and what is not upstream's to say (too many, not now) has a text of its own.

use hyper::StatusCode;
use spanwire_plan::offer;

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Not POST.
    NotPost,
    /// The body cannot be read, or is too long for a code.
    BadBody,
    /// A header that cannot be used. It costs nothing.
    BadHeader(&'static str),
    /// No grant of ours has this uid.
    UnknownGrant,
    /// The code is another one.
    WrongCode,
    /// The grant's status does not say until when it is valid.
    CorruptGrant,
    /// The grant's time is over.
    Expired,
    /// The grant has been redeemed as often as it allows.
    UsedUp,
    /// Too many wrong tries from there, or too much to do.
    TooMany,
    /// The API server is away, or was too slow, or has not told everything yet. Nothing was counted, or it is not known
    /// whether; a repeat with the same nonce is right in either case.
    Unavailable,
    /// There is no site in this namespace.
    NoSite(String),
    /// The site's CA is not there yet, or cannot sign.
    NoIssuer,
    /// The site can be reached nowhere yet.
    NoEndpoint,
    /// The site is an edge site.
    EdgeSite,
    /// Something of ours failed; nothing was counted.
    Failed,
}

impl From<offer::Refusal> for Refusal {
    fn from(refusal: offer::Refusal) -> Self {
        match refusal {
            offer::Refusal::Endless => Self::CorruptGrant,
            offer::Refusal::Expired(_) => Self::Expired,
            offer::Refusal::UsedUp(_) => Self::UsedUp,
            offer::Refusal::EdgeSite => Self::EdgeSite,
            offer::Refusal::NoEndpoint => Self::NoEndpoint,
        }
    }
}

impl Refusal {
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::NotPost => StatusCode::METHOD_NOT_ALLOWED,
            Self::BadBody | Self::BadHeader(_) => StatusCode::BAD_REQUEST,
            Self::UnknownGrant | Self::Expired | Self::UsedUp => StatusCode::NOT_FOUND,
            Self::WrongCode => StatusCode::FORBIDDEN,
            Self::TooMany => StatusCode::TOO_MANY_REQUESTS,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::CorruptGrant
            | Self::NoSite(_)
            | Self::NoIssuer
            | Self::NoEndpoint
            | Self::EdgeSite
            | Self::Failed => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    pub(crate) fn text(&self) -> String {
        match self {
            Self::NotPost => "Only POST is supported",
            Self::BadBody => "Request body not valid",
            Self::BadHeader(name) => return format!("Request header {name} not valid"),
            Self::UnknownGrant | Self::Expired => "No such claim",
            Self::WrongCode => "Redemption of access token refused",
            Self::CorruptGrant => "Corrupted claim",
            Self::UsedUp => "No such access granted",
            Self::TooMany => "Too many requests",
            Self::Unavailable | Self::Failed => "Internal error",
            Self::NoSite(namespace) => return format!("Site not yet defined for {namespace}"),
            Self::NoIssuer => "Could not get issuer for requested certificate",
            Self::NoEndpoint => "No valid endpoints found for site",
            Self::EdgeSite => "Edge sites cannot accept incoming links from remote sites",
        }
        .to_owned()
    }

    /// After how many seconds it makes sense to ask again.
    pub(super) fn retry_after(&self) -> Option<u32> {
        match self {
            Self::TooMany => Some(1),
            Self::Unavailable => Some(5),
            _ => None,
        }
    }

    /// The word for it in the metrics.
    pub(super) fn result(&self) -> &'static str {
        match self {
            Self::NotPost | Self::BadBody | Self::BadHeader(_) => "malformed",
            Self::UnknownGrant => "unknown",
            Self::WrongCode => "refused",
            Self::Expired => "expired",
            Self::UsedUp => "used_up",
            Self::TooMany => "limited",
            Self::Unavailable => "unavailable",
            Self::CorruptGrant
            | Self::NoSite(_)
            | Self::NoIssuer
            | Self::NoEndpoint
            | Self::EdgeSite
            | Self::Failed => "failed",
        }
    }
}
