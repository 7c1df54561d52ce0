//! In which words does the router tell of a connection that failed?

use std::io;

use fe2o3_amqp::types::definitions::{AmqpError, Error, ErrorCondition};
use rustls::AlertDescription;

/// Said of a peer that did not prove who it is.
pub(crate) const UNAUTHORIZED: &str = "amqp:unauthorized-access Authentication failed [mech=none]";

/// Said to a peer that has been silent for too long.
pub(crate) fn idle_error() -> Error {
    Error::new(
        ErrorCondition::AmqpError(AmqpError::ResourceLimitExceeded),
        Some("local-idle-timeout expired".to_owned()),
        None,
    )
}

/// The condition and its description, as the router prints them.
pub(crate) fn describe(error: &Error) -> String {
    let condition = serde_json::to_value(&error.condition)
        .ok()
        .and_then(|value| value.as_str().map(str::to_owned))
        .unwrap_or_else(|| format!("{:?}", error.condition));
    format!(
        "{condition} {}",
        error.description.as_deref().unwrap_or_default()
    )
}

/// Did the resolver not know the name?
pub(crate) fn is_unknown_name(fault: &io::Error) -> bool {
    fault
        .to_string()
        .contains("failed to lookup address information")
}

/// The router's words for a transport that failed, in the terms of its TLS library.
pub(crate) fn transport_text(fault: &io::Error) -> String {
    let tls = fault
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let reason = match tls {
        Some(rustls::Error::AlertReceived(alert)) => alert_text(*alert),
        Some(rustls::Error::InvalidCertificate(_)) => {
            "0A000086:SSL routines::certificate verify failed"
        }
        Some(rustls::Error::NoCertificatesPresented) => {
            "0A0000C7:SSL routines::peer did not return a certificate"
        }
        Some(rustls::Error::InvalidMessage(_)) => "0A00010B:SSL routines::wrong version number",
        Some(other) => return format!("amqp:connection:framing-error SSL Failure: {other}"),
        None if fault.kind() == io::ErrorKind::UnexpectedEof => {
            "0A000126:SSL routines::unexpected eof while reading"
        }
        None => return fault.to_string(),
    };
    format!("amqp:connection:framing-error SSL Failure: error:{reason}")
}

fn alert_text(alert: AlertDescription) -> &'static str {
    match alert {
        AlertDescription::UnknownCA => "0A000418:SSL routines::tlsv1 alert unknown ca",
        AlertDescription::CertificateExpired => {
            "0A000415:SSL routines::sslv3 alert certificate expired"
        }
        AlertDescription::CertificateRequired => {
            "0A00045C:SSL routines::tlsv13 alert certificate required"
        }
        AlertDescription::BadCertificate => "0A000412:SSL routines::sslv3 alert bad certificate",
        _ => "0A000410:SSL routines::sslv3 alert handshake failure",
    }
}
