//! What can go wrong between the operator and the API server, and does it pass by itself?

use std::time::Duration;

use thiserror::Error;

/// A call to the API server that did not do what was asked.
#[derive(Debug, Error)]
pub enum CallServer {
    /// It was answered, and refused; or it never got there.
    #[error("{}", told(.0))]
    Refused(#[from] kube::Error),
    /// No answer within the deadline: what became of it is not known.
    #[error("no answer within {0:?}")]
    Unanswered(Duration),
}

impl CallServer {
    /// The HTTP status code of the answer, where there was one.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Refused(kube::Error::Api(status)) => Some(status.code),
            _ => None,
        }
    }

    /// The machine-readable reason of the answer, where there was one.
    pub fn reason(&self) -> &str {
        match self {
            Self::Refused(kube::Error::Api(status)) => &status.reason,
            _ => "",
        }
    }

    /// Whether the World that the call was planned on is not the world any more: the watch will bring the news.
    pub fn is_stale(&self) -> bool {
        self.code() == Some(409) && self.reason() != "AlreadyExists"
            || self.code() == Some(404)
            || self.is_of_dying()
            || self.code() == Some(422) && self.message().contains("metadata.uid")
    }

    /// Whether the object was not made because its namespace is being deleted, or is gone.
    pub fn is_of_dying(&self) -> bool {
        match self.code() {
            Some(403) => self.message().contains("because it is being terminated"),
            Some(404) => match self {
                Self::Refused(kube::Error::Api(status)) => status
                    .details
                    .as_ref()
                    .is_some_and(|details| details.kind == "namespaces"),
                _ => false,
            },
            _ => false,
        }
    }

    fn message(&self) -> &str {
        match self {
            Self::Refused(kube::Error::Api(status)) => &status.message,
            _ => "",
        }
    }

    /// Whether the object would not be valid.
    pub fn is_invalid(&self) -> bool {
        self.code() == Some(422)
    }

    /// Whether the object would not fit: the API server's limit, or etcd's, which reads like a server fault
    /// (`facts/order.md` k).
    pub fn is_too_large(&self) -> bool {
        match self {
            Self::Refused(kube::Error::Api(status)) => {
                status.code == 413
                    || status.message.contains("request is too large")
                    || status.message.contains("Too long: may not be more than")
            }
            _ => false,
        }
    }
}

/// What the API server said, as it said it: these texts get into statuses, where a person reads them.
fn told(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        error => error.to_string(),
    }
}

/// How long any one call may take.
pub const CALL: Duration = Duration::from_secs(10);

/// The call's answer, or why there is none within [`CALL`].
pub async fn within<T>(
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, CallServer> {
    match tokio::time::timeout(CALL, call).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(CallServer::Unanswered(CALL)),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn a_refusal_reads_as_the_server_said_it() {
        let status = Status::failure("spec.ports[1].name: Duplicate value: \"amqps\"", "Invalid");
        let error = CallServer::from(kube::Error::Api(Box::new(status.with_code(422))));
        assert_eq!(
            error.to_string(),
            "spec.ports[1].name: Duplicate value: \"amqps\""
        );
    }
}
