//! What may a user write into a field, and what is he told when he may not?
//!
//! The API server answers with the path of the field in front of these sentences, so they say what is wanted and
//! do not repeat the name. Ports, counts and choices are plain JSON schema, whose answers are clear enough; a
//! pattern's are not, so text is checked by rules in CEL. Every text that a rule reads has a length limit and every
//! list a size limit, because the API server refuses rules whose cost it cannot bound.

use kube_core::{Reason, Rule};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use crate::endpoint::Endpoint;

/// The longest name that DNS, and with it Kubernetes, knows.
const DNS_NAME: u32 = 253;
/// The longest label of a DNS name, and the longest name of a Service.
pub(crate) const DNS_LABEL: u32 = 63;
/// A site has two routers at most, each with a handful of addresses.
const ENDPOINTS: u32 = 64;
/// Names and addresses in one certificate.
const HOSTS: u32 = 256;
/// A bundle of every public CA has about 230 KiB.
const CA_BUNDLE: u32 = 256 * 1024;
/// Longer than any address that a browser takes.
const URL: u32 = 2048;
/// A code is compared, never parsed.
const CODE: u32 = 1024;
/// The longest text that a Go duration needs is about 30.
const DURATION: u32 = 64;
/// The command line sends the names of all endpoints of a site as one subject.
const SUBJECT: u32 = 16 * 1024;

/// The ways in which a port can be offered to other clusters; the empty text means the operator's default.
const ACCESS_TYPES: [&str; 9] = [
    "",
    "local",
    "loadbalancer",
    "nodeport",
    "route",
    "ingress",
    "ingress-nginx",
    "contour-http-proxy",
    "gateway",
];

/// A DNS name. Underscores occur in the wild; a name that is all digits and dots is a mistyped address.
const IS_DNS_NAME: &str = "self.matches('^[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?\
    ([.][A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*[.]?$') && !self.matches('^[0-9.]+$')";
const IS_OBJECT_NAME: &str = "self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')";

/// The name of a Secret, ServiceAccount or the like; the empty text means none.
pub(crate) fn object_name(_: &mut SchemaGenerator) -> Schema {
    let rule = Rule::new(format!("self == '' || {IS_OBJECT_NAME}")).message(
        "must be the name of an object of this namespace: lower-case letters, digits, '-' and '.', beginning and \
         ending with a letter or digit",
    );
    text(DNS_NAME, &[rule])
}

/// As [`object_name`], where there has to be one.
pub(crate) fn required_object_name(_: &mut SchemaGenerator) -> Schema {
    let rule = Rule::new(IS_OBJECT_NAME).message(
        "must be the name of a Secret of this namespace: lower-case letters, digits, '-' and '.', beginning and \
         ending with a letter or digit",
    );
    text(DNS_NAME, &[rule])
}

/// The name of a port of a Service.
pub(crate) fn port_name(_: &mut SchemaGenerator) -> Schema {
    let rule = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')").message(
        "must be a port name: lower-case letters, digits and '-', beginning and ending with a letter or digit",
    );
    text(DNS_LABEL, &[rule])
}

/// The name or address of a machine; the empty text means none.
pub(crate) fn host(_: &mut SchemaGenerator) -> Schema {
    let rule = Rule::new(format!("self == '' || isIP(self) || ({IS_DNS_NAME})"))
        .message("must be a DNS name or an IP address, without port, scheme or brackets");
    text(DNS_NAME, &[rule])
}

/// The names and addresses that a certificate is good for.
pub(crate) fn hosts(_: &mut SchemaGenerator) -> Schema {
    let rule = Rule::new(format!(
        "isIP(self) || ({IS_DNS_NAME}) || (self.startsWith('*.') && \
         self.matches('^[*]([.][A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)+$'))"
    ))
    .message("must be a DNS name, which may begin with '*.', or an IP address, without port, scheme or brackets");
    json_schema!({ "type": "array", "maxItems": HOSTS, "items": text(DNS_NAME, &[rule]) })
}

/// The addresses that a Link may dial.
pub(crate) fn endpoints(generator: &mut SchemaGenerator) -> Schema {
    let port = Rule::new(
        "self == '' || (self.matches('^[0-9]{1,5}$') && int(self) >= 1 && int(self) <= 65535)",
    )
    .message("must be a number from 1 to 65535, written as a string");
    let checks = [("host", host(generator)), ("port", text(8, &[port]))];

    let mut endpoint = generator.subschema_for::<Endpoint>();
    for (name, check) in checks {
        let property = endpoint
            .pointer_mut(&format!("/properties/{name}"))
            .and_then(Value::as_object_mut);
        if let Some(property) = property {
            property.extend(check.as_object().cloned().unwrap_or_default());
        }
    }
    json_schema!({ "type": "array", "minItems": 1, "maxItems": ENDPOINTS, "items": endpoint })
}

/// How a port is offered to other clusters.
pub(crate) fn access_type(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ACCESS_TYPES })
}

/// As [`access_type`], and the two words that only a Site knows.
pub(crate) fn link_access(_: &mut SchemaGenerator) -> Schema {
    let words: Vec<&str> = ["none", "default"]
        .into_iter()
        .chain(ACCESS_TYPES)
        .collect();
    json_schema!({ "type": "string", "enum": words })
}

/// A length of time as Go writes it, longer than none.
pub(crate) fn duration(_: &mut SchemaGenerator) -> Schema {
    let rule = Rule::new(
        "self == '' || (self.matches('^[+]?(([0-9]+([.][0-9]*)?|[.][0-9]+)(ns|us|µs|μs|ms|s|m|h))+$') && \
         duration(self) > duration('0s'))",
    )
    .message("must be a duration longer than zero such as 90s, 15m, 1h30m or 1.5h (units: h, m, s, ms, us, ns)");
    text(DURATION, &[rule])
}

/// Where a token is redeemed.
pub(crate) fn https_url(_: &mut SchemaGenerator) -> Schema {
    let rule = Rule::new(
        "self.startsWith('https://') && isURL(self) && url(self).getHostname() != ''",
    )
    .message(
        "must be the https:// address of a grant, because a secret code is sent to it: copy status.url of the \
         AccessGrant",
    );
    text(URL, &[rule])
}

/// The certificates of a CA, as PEM.
pub(crate) fn ca_bundle(_: &mut SchemaGenerator) -> Schema {
    let rule = Rule::new("self.contains('-----BEGIN CERTIFICATE-----')").message(
        "must be a PEM certificate, because only a server that it vouches for is trusted with the code: copy \
         status.ca of the AccessGrant",
    );
    text(CA_BUNDLE, &[rule])
}

/// A code that has to be there. It may be anything: it is only ever compared.
pub(crate) fn required_code(_: &mut SchemaGenerator) -> Schema {
    let rule = Rule::new("self != ''")
        .message("must not be empty: copy status.code of the AccessGrant")
        .reason(Reason::FieldValueRequired);
    text(CODE, &[rule])
}

/// A code that may be left to the operator.
pub(crate) fn code(_: &mut SchemaGenerator) -> Schema {
    text(CODE, &[])
}

/// The subject of a certificate. It may be longer than a common name: then the hosts speak for it.
pub(crate) fn subject(_: &mut SchemaGenerator) -> Schema {
    text(SUBJECT, &[])
}

/// The value of `x-kubernetes-validations`.
pub(crate) fn rules(rules: &[Rule]) -> Value {
    json!(rules)
}

fn text(max: u32, checks: &[Rule]) -> Schema {
    let mut schema = json_schema!({ "type": "string", "maxLength": max });
    if !checks.is_empty() {
        schema.insert("x-kubernetes-validations".into(), rules(checks));
    }
    schema
}
