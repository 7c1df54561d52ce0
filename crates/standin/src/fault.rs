//! What does the router answer, or die of, when something is wrong?

use std::fmt;

/// One refusal, with the exception that the router's own agent would have raised.
///
/// The same fault is worded differently over management and at start-up.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    /// The `statusCode` of a management reply.
    pub(crate) status: i32,
    exception: &'static str,
    text: String,
}

impl Fault {
    fn new(status: i32, exception: &'static str, text: impl Into<String>) -> Self {
        Self {
            status,
            exception,
            text: text.into(),
        }
    }

    /// The request or the entity does not fit the schema.
    pub(crate) fn validation(text: impl Into<String>) -> Self {
        Self::new(400, "ValidationError", text)
    }

    pub(crate) fn bad_request(text: impl Into<String>) -> Self {
        Self::new(400, "BadRequestStatus", text)
    }

    pub(crate) fn forbidden(text: impl Into<String>) -> Self {
        Self::new(403, "ForbiddenStatus", text)
    }

    pub(crate) fn not_found(text: impl Into<String>) -> Self {
        Self::new(404, "NotFoundStatus", text)
    }

    pub(crate) fn not_implemented(text: impl Into<String>) -> Self {
        Self::new(501, "NotImplementedStatus", text)
    }

    /// A fault of the agent itself, for example a body that is not a map.
    pub(crate) fn internal(exception: &'static str, text: impl Into<String>) -> Self {
        Self::new(500, exception, text)
    }

    /// A configuration that the core refuses: TLS files above all.
    pub(crate) fn configuration(text: impl fmt::Display) -> Self {
        Self::internal("CError", format!("Configuration: {text}"))
    }

    /// Something named that the core does not have.
    pub(crate) fn core_not_found(text: impl fmt::Display) -> Self {
        Self::internal("CError", format!("Not found: {text}"))
    }

    /// The `statusDescription` of a management reply.
    pub(crate) fn description(&self) -> String {
        if self.status == 500 {
            return format!("{}: {}", self.exception, self.text);
        }
        self.text.clone()
    }

    /// What follows `Router start-up failed: ` when the configuration file is at fault.
    pub(crate) fn start_up(&self) -> String {
        format!("Python: {}: {}", self.exception, self.text)
    }
}
