//! What is an access token: the means to get a link to another site?

use std::{collections::BTreeMap, fmt};

use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{check, condition, condition::Condition};

/// Where the grant of the other site is, and what has to be known there.
#[derive(CustomResource, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "skupper.io",
    version = "v2alpha1",
    kind = "AccessToken",
    doc = "A copy of another site's AccessGrant: url, code and ca. It is redeemed once, for a Link and its credentials, \
           and may be deleted afterwards: the Link stays.",
    namespaced,
    status = "AccessTokenStatus",
    category = "skupper",
    shortname = "token",
    shortname = "to",
    derive = "Default",
    derive = "PartialEq",
    crates(kube_core = "::kube_core"),
    printcolumn(name = "URL", type_ = "string", json_path = ".spec.url"),
    printcolumn(name = "Redeemed", type_ = "boolean", json_path = ".status.redeemed"),
    printcolumn(name = "Status", type_ = "string", json_path = ".status.status"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message")
)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["url", "code", "ca"]))]
pub struct AccessTokenSpec {
    /// The address at which the token is redeemed: `status.url` of the AccessGrant. Only https.
    #[schemars(schema_with = "check::https_url")]
    pub url: String,

    /// What has to be known there: `status.code` of the AccessGrant.
    #[schemars(schema_with = "check::required_code")]
    pub code: String,

    /// The certificate of the CA, as PEM, that vouches for the server there: `status.ca` of the AccessGrant. No other
    /// CA is trusted with the code.
    #[schemars(schema_with = "check::ca_bundle")]
    pub ca: String,

    /// The cost of the Link that comes of it. 1 if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub link_cost: Option<i32>,

    /// Finer settings by name. None is known yet.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
}

/// Shows everything but the code, so that it cannot slip into a log.
impl fmt::Debug for AccessTokenSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            url,
            code: _,
            ca,
            link_cost,
            settings,
        } = self;
        f.debug_struct("AccessTokenSpec")
            .field("url", url)
            .field("code", &"hidden")
            .field("ca", ca)
            .field("link_cost", link_cost)
            .field("settings", settings)
            .finish()
    }
}

/// What is true of the token now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AccessTokenStatus {
    /// Redeemed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "condition::conditions")]
    pub conditions: Vec<Condition>,

    /// `Ready`, `Pending` or `Error`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,

    /// `OK`, or what is missing and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,

    /// Whether the token has been exchanged for a Link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redeemed: Option<bool>,
}

/// The reasons of an AccessToken's condition.
pub mod reason {
    pub use crate::condition::reason::{
        INTERNAL_ERROR, INVALID_OBJECT, NAME_TAKEN, NO_ACTIVE_SITE, PENDING, READY, TIMED_OUT,
        TOO_LARGE, WRITE_FAILED,
    };

    /// The other site says that the code is wrong. Final for this spec; copy the token again.
    pub const CODE_REFUSED: &str = "CodeRefused";
    /// The token itself cannot be used: its url or ca does not parse, or its url is one that must not be dialled, such
    /// as a loopback address. Final for this spec; copy the token again.
    pub const TOKEN_INVALID: &str = "TokenInvalid";
    /// The server at the url is not the one that `ca` vouches for. Nothing was sent to it. Copy the token again; if it
    /// stays, somebody stands in between.
    pub const PEER_UNTRUSTED: &str = "PeerUntrusted";
    /// The server at the url does not answer, or answers that it cannot now. It is tried again, with growing pauses.
    pub const PEER_UNREACHABLE: &str = "PeerUnreachable";
    /// What came back is not one set of credentials and a few links. Final for this spec, and nothing of it was
    /// applied: ask the operator of the other site.
    pub const ANSWER_INVALID: &str = "AnswerInvalid";
    /// The redemption was sent and its answer lost, and the other site cannot repeat it. It may have been counted
    /// there; get a new token.
    pub const ANSWER_LOST: &str = "AnswerLost";
    /// The grant is used up. Final for this spec; get a new token.
    pub const USED_UP: &str = "UsedUp";
    /// The grant is past its time or gone: the other site does not say which. Final for this spec; get a new token.
    pub const EXPIRED: &str = "Expired";
}
