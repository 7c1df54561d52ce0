//! What is an access grant: the permission for other sites to link to this one?

use std::{collections::BTreeMap, fmt};

use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{check, condition, condition::Condition};

/// How often and how long the grant may be used.
#[derive(CustomResource, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "skupper.io",
    version = "v2alpha1",
    kind = "AccessGrant",
    doc = "A permission for other sites to link to this one. Its url, code and ca, copied into an AccessToken in \
           another namespace or cluster, are exchanged there for a Link.",
    namespaced,
    status = "AccessGrantStatus",
    category = "skupper",
    shortname = "grant",
    shortname = "gr",
    derive = "Default",
    derive = "PartialEq",
    crates(kube_core = "::kube_core"),
    printcolumn(
        name = "Redemptions Allowed",
        type_ = "integer",
        json_path = ".spec.redemptionsAllowed"
    ),
    printcolumn(
        name = "Redemptions Made",
        type_ = "integer",
        json_path = ".status.redemptions"
    ),
    printcolumn(
        name = "Expiration",
        type_ = "string",
        json_path = ".status.expirationTime"
    ),
    printcolumn(name = "Status", type_ = "string", json_path = ".status.status"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message")
)]
#[serde(rename_all = "camelCase", default)]
pub struct AccessGrantSpec {
    /// How many times the grant may be redeemed. Once if left out or 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub redemptions_allowed: Option<i64>,

    /// How long from now the grant may be redeemed, such as `15m` or `1h30m`. 15 minutes if left out. The end is fixed
    /// once it stands in the status.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "check::duration")]
    pub expiration_window: Option<String>,

    /// The secret that a token has to know. Made by the operator if left out, which is better: a code that a person
    /// thinks of can be guessed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "check::code")]
    pub code: Option<String>,

    /// The Secret of the CA that signs the credentials of those who redeem. The site's default issuer if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "check::object_name")]
    pub issuer: Option<String>,

    /// Finer settings by name. None is known yet.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
}

/// What is true of the grant now.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AccessGrantStatus {
    /// Processed, Resolved and Ready.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "condition::conditions")]
    pub conditions: Vec<Condition>,

    /// `Ready`, `Pending` or `Error`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,

    /// `OK`, or what is missing and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,

    /// Where the grant is redeemed: `url` of an AccessToken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,

    /// What a token has to know: `code` of an AccessToken. Who can read it can link to this site.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,

    /// The certificate of the CA that vouches for the server at `url`, as PEM: `ca` of an AccessToken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,

    /// How many times the grant has been redeemed. A repeat of the same redemption does not count again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redemptions: Option<i64>,

    /// Until when the grant may be redeemed, as RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub expiration_time: Option<String>,

    /// The latest redemptions, so that a client which lost the answer can ask again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<Claim>,
}

/// A redemption that has been counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Claim {
    /// A digest of who redeemed: of the client's nonce, name and subject.
    pub hash: String,
    /// When it was counted, as RFC 3339.
    #[schemars(extend("format" = "date-time"))]
    pub time: String,
}

/// Shows everything but the code, so that it cannot slip into a log.
impl fmt::Debug for AccessGrantSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            redemptions_allowed,
            expiration_window,
            code,
            issuer,
            settings,
        } = self;
        f.debug_struct("AccessGrantSpec")
            .field("redemptions_allowed", redemptions_allowed)
            .field("expiration_window", expiration_window)
            .field("code", &code.as_ref().map(|_| "hidden"))
            .field("issuer", issuer)
            .field("settings", settings)
            .finish()
    }
}

/// Shows everything but the code, so that it cannot slip into a log.
impl fmt::Debug for AccessGrantStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            conditions,
            status,
            message,
            url,
            code,
            ca,
            redemptions,
            expiration_time,
            claims,
        } = self;
        f.debug_struct("AccessGrantStatus")
            .field("conditions", conditions)
            .field("status", status)
            .field("message", message)
            .field("url", url)
            .field("code", &code.as_ref().map(|_| "hidden"))
            .field("ca", ca)
            .field("redemptions", redemptions)
            .field("expiration_time", expiration_time)
            .field("claims", claims)
            .finish()
    }
}

/// The reasons of an AccessGrant's conditions.
pub mod reason {
    pub use crate::condition::reason::{
        AWAITING_ADDRESS, CA_NOT_FOUND, CREDENTIALS_EXPIRED, CREDENTIALS_INVALID,
        CREDENTIALS_NOT_FOUND, EDGE_SITE, INTERNAL_ERROR, INVALID_OBJECT, NO_ACTIVE_SITE, PENDING,
        READY, TIMED_OUT,
    };

    /// The grant has been redeemed as often as it allows. Raise `redemptionsAllowed`, or create another one.
    pub const USED_UP: &str = "UsedUp";
    /// The time of the grant is over. Create another one.
    pub const EXPIRED: &str = "Expired";
    /// The site accepts no links, so nothing could be redeemed. Set `linkAccess` of the Site, or create a
    /// RouterAccess.
    pub const NO_ENDPOINT: &str = "NoEndpoint";
    /// `expirationWindow` is not a duration longer than zero. Correct it.
    pub const INVALID_DURATION: &str = "InvalidDuration";
    /// This operator serves no grants. Start it with grants enabled, or create the grant where they are.
    pub const GRANTS_DISABLED: &str = "GrantsDisabled";
}
