//! How is a code sent, and an answer received?

use std::net::SocketAddr;

use aws_lc_rs::hmac;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{CONTENT_ENCODING, HOST, HeaderValue};
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use rustls::{CertificateError, Error as TlsError};
use spanwire_plan::plan::Redeem;
use spanwire_plan::world::Outcome;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use zeroize::Zeroizing;

use super::address::{FindAddress, addresses};
use super::api_server::is_certificate_of_one;
use super::target::Target;
use super::{Policy, message};
use crate::grants::request::NONCE_HEADER;
use crate::lease::Leading;
use crate::text;

/// The largest answer.
const MAX_ANSWER: usize = 64 * 1024;
/// The largest headers of an answer.
const MAX_HEADERS: usize = 16 * 1024;
/// What is said of a site that could not be talked to, whatever the cause: who may write tokens is not told which ports
/// are open where.
pub(super) const NO_ANSWER: &str = "nobody answers at the token's url as a grant server would";

/// Why there is no answer that could be used. The texts of what is tried again get into a status at each try: they hold
/// nothing that may be another one the next time.
#[derive(Debug, Error)]
pub(super) enum Exchange {
    #[error("{NO_ANSWER}")]
    Reach,
    #[error("the token's url leads to an address that may not be dialled")]
    AllowAddress,
    #[error("the certificate at the token's url {0}")]
    Trust(&'static str),
    /// By the clock of this machine, which may be the one that is wrong.
    #[error(
        "the certificate at the token's url {0}, by the clock here: set whichever clock is wrong"
    )]
    Date(&'static str),
    #[error("the other site cannot answer now")]
    Wait,
    #[error("the code was refused")]
    AcceptCode,
    #[error("the grant is used up")]
    LeaveSome,
    #[error("the grant has expired, or is not known there")]
    KnowGrant,
    #[error("the answer at the token's url is not that of a grant server ({0})")]
    Understand(StatusCode),
    #[error("the answer at the token's url is larger than {MAX_ANSWER} bytes, or was cut off")]
    LimitAnswer,
    #[error("the answer at the token's url is packed, which was not asked for")]
    Unpack,
    #[error("the token's name or the site's uid cannot be sent")]
    WriteRequest,
    #[error("this replica does not lead any more")]
    Lead,
}

impl Exchange {
    /// What this means for the token, if anything.
    pub(super) fn outcome(&self) -> Option<Outcome> {
        let text = message(&self.to_string());
        Some(match self {
            Self::Reach | Self::Date(_) | Self::Wait => Outcome::Unreachable(text),
            Self::AllowAddress | Self::WriteRequest => Outcome::Invalid(text),
            Self::Trust(_) => Outcome::Untrusted(text),
            Self::AcceptCode => Outcome::CodeRefused,
            Self::LeaveSome => Outcome::UsedUp,
            Self::KnowGrant => Outcome::Expired,
            Self::Understand(_) | Self::LimitAnswer | Self::Unpack => Outcome::AnswerRefused(text),
            Self::Lead => return None,
        })
    }
}

/// Sends the code, if this replica still leads by then, and gives back the body of a good answer. The caller sets the deadline.
pub(super) async fn exchange(
    target: &Target,
    code: &Zeroizing<String>,
    redeem: &Redeem,
    policy: &Policy,
    api_servers: &[Uri],
    leading: &Leading,
) -> Result<Zeroizing<Vec<u8>>, Exchange> {
    let addresses = addresses(target, policy, api_servers)
        .await
        .map_err(|error| match error {
            FindAddress::LookUp => Exchange::Reach,
            FindAddress::Refuse => Exchange::AllowAddress,
        })?;
    let request = request(target, code, redeem)?;
    let stream = connect(target, &addresses).await?;
    converse(stream, request, leading).await
}

/// Sends the request to whoever is at the other end, and gives back the body of a good answer.
pub(super) async fn converse<S>(
    stream: S,
    request: Request<Full<Bytes>>,
    leading: &Leading,
) -> Result<Zeroizing<Vec<u8>>, Exchange>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(MAX_HEADERS)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|_| Exchange::Reach)?;
    // Ends with this function.
    let mut conversation = JoinSet::new();
    conversation.spawn(connection);
    // The last moment at which giving up costs no claim.
    if !leading.is_leading() {
        return Err(Exchange::Lead);
    }
    let response = sender
        .send_request(request)
        .await
        .map_err(|_| Exchange::Reach)?;
    judge(response).await
}

async fn connect(
    target: &Target,
    addresses: &[SocketAddr],
) -> Result<TlsStream<TcpStream>, Exchange> {
    let connector = TlsConnector::from(target.tls.clone());
    let mut failure = Exchange::Reach;
    for address in addresses {
        let Ok(stream) = TcpStream::connect(address).await else {
            continue;
        };
        // The request is small and goes out whole.
        let _ = stream.set_nodelay(true);
        match connector.connect(target.server_name.clone(), stream).await {
            Ok(stream) => {
                let (_, tls) = stream.get_ref();
                let shown = tls.peer_certificates().and_then(<[_]>::first);
                if shown.is_some_and(is_certificate_of_one) {
                    return Err(Exchange::AllowAddress);
                }
                return Ok(stream);
            }
            Err(error) => {
                if let Some(doubt) = doubt(&error) {
                    failure = doubt;
                }
            }
        }
    }
    Err(failure)
}

/// What is wrong with the peer's certificate, where that is what ended the handshake.
fn doubt(error: &std::io::Error) -> Option<Exchange> {
    let error = error.get_ref()?.downcast_ref::<TlsError>()?;
    let TlsError::InvalidCertificate(error) = error else {
        return None;
    };
    Some(match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            Exchange::Date("has expired")
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            Exchange::Date("is not valid yet")
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            Exchange::Trust("is not for the host that the url names")
        }
        _ => Exchange::Trust("is not vouched for by the token's ca"),
    })
}

fn request(
    target: &Target,
    code: &Zeroizing<String>,
    redeem: &Redeem,
) -> Result<Request<Full<Bytes>>, Exchange> {
    let header = |text: &str| HeaderValue::from_str(text).map_err(|_| Exchange::WriteRequest);
    Request::post(&target.path)
        .header(HOST, header(&target.authority)?)
        .header("name", header(&redeem.token)?)
        .header("subject", header(&redeem.subject)?)
        .header(NONCE_HEADER, nonce(code, &redeem.uid))
        .body(Full::new(Bytes::from_owner(code.clone())))
        .map_err(|_| Exchange::WriteRequest)
}

/// The same for every try of this token, after a crash and in another operator too; and known to nobody who does not
/// know both.
fn nonce(code: &str, token_uid: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, code.as_bytes());
    text::hex(hmac::sign(&key, token_uid.as_bytes()).as_ref())
}

async fn judge<B>(response: Response<B>) -> Result<Zeroizing<Vec<u8>>, Exchange>
where
    B: hyper::body::Body,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let status = response.status();
    let is_packed = response.headers().contains_key(CONTENT_ENCODING);
    let body = Limited::new(response.into_body(), MAX_ANSWER)
        .collect()
        .await;
    let body = body.map(|body| Zeroizing::new(body.to_bytes().to_vec()));
    match status {
        StatusCode::OK if is_packed => Err(Exchange::Unpack),
        StatusCode::OK => body.map_err(|_| Exchange::LimitAnswer),
        StatusCode::FORBIDDEN => Err(Exchange::AcceptCode),
        StatusCode::NOT_FOUND => {
            // Upstream's server tells the two apart by this text alone (`facts/skupper-v2.md` §7.2).
            const USED_UP: &[u8] = b"No such access granted";
            let is_used_up = body.is_ok_and(|body| body.trim_ascii() == USED_UP);
            Err(if is_used_up {
                Exchange::LeaveSome
            } else {
                Exchange::KnowGrant
            })
        }
        status if status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() => {
            tracing::debug!(%status, "The other site cannot answer now");
            Err(Exchange::Wait)
        }
        status => Err(Exchange::Understand(status)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn judged(status: u16, body: &str) -> Outcome {
        let body = Full::new(Bytes::from(body.to_owned()));
        let response = Response::builder().status(status).body(body).unwrap();
        judge(response).await.unwrap_err().outcome().unwrap()
    }

    #[tokio::test]
    async fn upstreams_refusals_are_understood() {
        assert_eq!(
            judged(403, "Redemption of access token refused\n").await,
            Outcome::CodeRefused
        );
        assert_eq!(
            judged(404, "No such access granted\n").await,
            Outcome::UsedUp
        );
        assert_eq!(judged(404, "No such claim\n").await, Outcome::Expired);
        // In the same words, so that a status is not written anew at each try.
        let unreachable = judged(503, "x").await;
        assert!(matches!(unreachable, Outcome::Unreachable(_)));
        for status in [429, 500, 504] {
            assert_eq!(judged(status, "x").await, unreachable, "{status}");
        }
        for status in [201, 204, 301, 302, 307, 400, 401, 405, 418] {
            assert!(
                matches!(judged(status, "x").await, Outcome::AnswerRefused(_)),
                "{status}"
            );
        }
    }

    #[tokio::test]
    async fn nothing_that_the_peer_says_is_repeated() {
        for status in [200, 302, 404, 500] {
            let body = "<script>".to_owned() + &"x".repeat(100_000);
            let outcome = format!("{:?}", judged(status, &body).await);
            assert!(!outcome.contains("script"), "{outcome}");
        }
    }

    #[tokio::test]
    async fn an_answer_that_is_too_large_or_packed_is_refused() {
        let outcome = judged(200, &"x".repeat(MAX_ANSWER + 1)).await;
        assert!(matches!(outcome, Outcome::AnswerRefused(_)));
        let body = Full::new(Bytes::from("x"));
        let packed = Response::builder()
            .header(CONTENT_ENCODING, "gzip")
            .body(body)
            .unwrap();
        assert!(matches!(judge(packed).await, Err(Exchange::Unpack)));
    }

    #[test]
    fn a_nonce_is_derived_from_code_and_token() {
        let base = nonce("code", "uid");
        assert_eq!(base.len(), 64);
        assert_eq!(base, nonce("code", "uid"));
        assert_ne!(base, nonce("code", "other"));
        assert_ne!(base, nonce("other", "uid"));
    }
}
