//! What time is it? The one place that reads the wall clock; everything that waits uses the
//! monotonic one.

use k8s_openapi::jiff::{Timestamp, Unit};

/// Now, in RFC 3339, to the second.
#[expect(clippy::disallowed_methods, reason = "this is the one place")]
pub(crate) fn timestamp() -> String {
    let now = Timestamp::now();
    now.round(Unit::Second).unwrap_or(now).to_string()
}
