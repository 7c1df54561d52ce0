//! What does a client ask for?

use http_body_util::{BodyExt, Limited};
use hyper::body::Body;
use hyper::header::HeaderMap;
use hyper::{Method, http};
use zeroize::Zeroizing;

use super::Refusal;
use crate::text;

/// The header that makes a repeat recognisable. Upstream's clients do not send it.
pub(crate) const NONCE_HEADER: &str = "redemption-nonce";
/// The longest body: a code is a line of text.
const MAX_BODY: usize = 1024;
/// The longest name of a token: as long as an object's may be.
const MAX_NAME: usize = 253;
/// The longest subject. Upstream sends the site's uid.
const MAX_SUBJECT: usize = 256;
/// The longest nonce. Ours is a SHA-256 in hex.
const MAX_NONCE: usize = 128;
/// Random bytes of a nonce that we make for a client that has none.
const NONCE: usize = 32;

/// A well-formed request.
pub struct Request {
    /// uid of the grant, from the path.
    pub grant: String,
    /// What has to be the grant's code.
    pub code: Zeroizing<Vec<u8>>,
    /// What the Secret and the Links are to be called; the grant's name where absent.
    pub name: Option<String>,
    /// Common name of the certificate; the name where absent.
    pub subject: Option<String>,
    /// What the client will send again if it has to ask again.
    pub nonce: String,
}

impl Request {
    /// Reads a request, within its limits.
    pub(super) async fn read<B>(request: http::Request<B>) -> Result<Self, Refusal>
    where
        B: Body,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (head, body) = request.into_parts();
        if head.method != Method::POST {
            return Err(Refusal::NotPost);
        }
        // Upstream takes all slashes out.
        let grant = head.uri.path().replace('/', "");
        let name = header(&head.headers, "name", is_name)?;
        let subject = header(&head.headers, "subject", is_subject)?;
        let nonce = match header(&head.headers, NONCE_HEADER, is_nonce)? {
            Some(nonce) => nonce,
            None => random_nonce()?,
        };
        let body = Limited::new(body, MAX_BODY)
            .collect()
            .await
            .map_err(|_| Refusal::BadBody)?;
        let code = Zeroizing::new(body.to_bytes().to_vec());
        Ok(Self {
            grant,
            code,
            name,
            subject,
            nonce,
        })
    }
}

/// The header's value; none where it is absent or empty.
fn header(
    headers: &HeaderMap,
    name: &'static str,
    is_good: impl Fn(&str) -> bool,
) -> Result<Option<String>, Refusal> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let value = std::str::from_utf8(value.as_bytes()).map_err(|_| Refusal::BadHeader(name))?;
    if value.is_empty() {
        return Ok(None);
    }
    if values.next().is_some() || !is_good(value) {
        return Err(Refusal::BadHeader(name));
    }
    Ok(Some(value.to_owned()))
}

/// Whether an object can have this name (RFC 1123 subdomain).
pub(crate) fn is_name(name: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty()
            && label
                .bytes()
                .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.len() <= MAX_NAME && name.split('.').all(is_label)
}

fn is_subject(subject: &str) -> bool {
    subject.len() <= MAX_SUBJECT && text::printable(subject, MAX_SUBJECT) == subject
}

fn is_nonce(nonce: &str) -> bool {
    nonce.len() <= MAX_NONCE && nonce.bytes().all(|byte| byte.is_ascii_graphic())
}

fn random_nonce() -> Result<String, Refusal> {
    let mut bytes = [0; NONCE];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| Refusal::Failed)?;
    Ok(text::hex(&bytes))
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;
    use hyper::body::Bytes;

    use super::*;

    async fn read(headers: &[(&str, &str)], body: &str) -> Result<Request, Refusal> {
        let mut request = http::Request::post("/a-uid");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Request::read(
            request
                .body(Full::new(Bytes::from(body.to_owned())))
                .unwrap(),
        )
        .await
    }

    async fn refusal(headers: &[(&str, &str)], body: &str) -> Option<Refusal> {
        read(headers, body).await.err()
    }

    #[tokio::test]
    async fn a_request_of_upstreams_client_is_well_formed() {
        let request = read(&[("name", "my-token"), ("subject", "site-uid")], "the code")
            .await
            .unwrap();
        assert_eq!(request.grant, "a-uid");
        assert_eq!(request.name.as_deref(), Some("my-token"));
        assert_eq!(request.subject.as_deref(), Some("site-uid"));
        assert_eq!(*request.code, b"the code");
        assert_eq!(request.nonce.len(), 64);
    }

    #[tokio::test]
    async fn a_client_without_a_nonce_gets_one_that_nobody_repeats() {
        let nonce = async || read(&[], "").await.unwrap().nonce;
        assert_ne!(nonce().await, nonce().await);
        let request = read(&[(NONCE_HEADER, "abc")], "").await.unwrap();
        assert_eq!(request.nonce, "abc");
    }

    #[tokio::test]
    async fn bad_headers_are_refused_by_name() {
        let longest = "a".repeat(253);
        let named = read(&[("name", &longest)], "").await.unwrap().name;
        assert_eq!(named, Some(longest));
        let long = "a".repeat(254);
        for bad in [
            "-a",
            "a-",
            "A",
            "a_b",
            "a..b",
            ".",
            "../x",
            "a b",
            "ä",
            long.as_str(),
        ] {
            assert_eq!(
                refusal(&[("name", bad)], "").await,
                Some(Refusal::BadHeader("name")),
                "{bad}"
            );
        }
        let long = "a".repeat(257);
        for bad in ["a\tb", "a\u{202e}b", long.as_str()] {
            assert_eq!(
                refusal(&[("subject", bad)], "").await,
                Some(Refusal::BadHeader("subject")),
                "{bad}"
            );
        }
        for bad in ["a b", &"a".repeat(129)] {
            assert_eq!(
                refusal(&[(NONCE_HEADER, bad)], "").await,
                Some(Refusal::BadHeader(NONCE_HEADER)),
                "{bad}"
            );
        }
        let twice = [("name", "a"), ("name", "b")];
        assert_eq!(refusal(&twice, "").await, Some(Refusal::BadHeader("name")));
        assert!(read(&[("name", "")], "").await.unwrap().name.is_none());
    }

    #[tokio::test]
    async fn a_body_longer_than_a_code_is_not_read() {
        assert_eq!(
            refusal(&[], &"x".repeat(1025)).await,
            Some(Refusal::BadBody)
        );
        assert_eq!(refusal(&[], &"x".repeat(1024)).await, None);
    }

    #[tokio::test]
    async fn only_post_is_supported() {
        let request = http::Request::get("/a")
            .body(Full::new(Bytes::new()))
            .unwrap();
        assert_eq!(Request::read(request).await.err(), Some(Refusal::NotPost));
    }
}
