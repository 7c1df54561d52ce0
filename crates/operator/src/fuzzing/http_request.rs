//! What does a client get out of the grant server, whatever he says after the handshake?
//!
//! The bytes are his whole connection, in HTTP/1.1 or HTTP/2, to a server with one grant.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use futures::FutureExt;
use http_body_util::BodyExt;
use hyper::body::Bytes;
use hyper::{Response, StatusCode};
use tokio::io::duplex;
use tokio::time::timeout;

use super::{HANG_UP, PIECE, at_once, peer_answer, stranger};
use crate::grants::request::NONCE_HEADER;
use crate::grants::{Refusal, talk};
use crate::mock::cluster::{CODE, Cluster, authority};
use crate::pki::Credential;

/// The grant's redemptions: fewer than one connection may ask for.
const ALLOWED: i64 = 2;
/// How long a client can be there who says no more: as long as a request may take, and a little.
const LONGEST: Duration = Duration::from_secs(12);
/// What hyper says by itself of what is no request, with nothing else: 100, 400, 414, 431.
const OF_HTTP: [StatusCode; 4] = [
    StatusCode::CONTINUE,
    StatusCode::BAD_REQUEST,
    StatusCode::URI_TOO_LONG,
    StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
];

/// What came of a connection.
pub(super) struct Heard {
    /// Each answer as it was made, whatever it was sent in.
    pub(super) answers: Vec<(StatusCode, Bytes)>,
    /// What the client was sent.
    wire: Vec<u8>,
    /// How many redemptions were counted.
    counted: i64,
}

/// Nobody gets anything without the code; nobody is told anything but what is in the contract; nobody stays.
pub fn run(bytes: &[u8]) {
    let heard = heard(bytes);
    let refusals = refusals();
    let mut given = 0;
    for (status, body) in &heard.answers {
        if *status == StatusCode::OK {
            given += 1;
            let answer = [b"HTTP/1.1 200 OK\r\n\r\n", &**body, &[HANG_UP]].concat();
            assert!(
                peer_answer::is_taken(&answer),
                "our own redeemer does not take it"
            );
        } else {
            let is_known = refusals
                .iter()
                .any(|(known, text)| known == status && text == body);
            assert!(is_known, "{status} with {body:?} is in no contract");
        }
    }
    assert!(heard.counted <= ALLOWED, "more was given than may be");
    assert!(
        given == 0 || heard.counted > 0,
        "what was given was not counted"
    );
    assert!(
        heard.counted == 0 || is_spelt(CODE.as_bytes(), bytes),
        "something was given to somebody who does not know the code"
    );
    let mut told = heard.wire.windows(CODE.len());
    assert!(
        told.all(|part| part != CODE.as_bytes()),
        "the code was told"
    );
    assert_statuses(&heard.wire, &refusals);
}

/// Requests to begin with: good ones, and one of each way to be refused.
pub fn seeds() -> Vec<Vec<u8>> {
    let code = format!("content-length: {}\r\n\r\n{CODE}", CODE.len());
    let named = "name: t\r\nsubject: site-uid\r\n";
    let post = format!("POST /grant-uid HTTP/1.1\r\nhost: x\r\n{named}");
    let good = format!("{post}{code}");
    let (start, end) = CODE.split_at(10);
    let texts = [
        good.clone(),
        format!("{good}\x04"),
        format!("{good}{good}{good}"),
        format!("{post}{NONCE_HEADER}: n\r\n{code}").repeat(3),
        good.replace("HTTP/1.1", "HTTP/1.0"),
        good.replace(CODE, &CODE.to_lowercase()),
        good.replace("grant-uid", "other-uid"),
        good.replace("POST", "GET"),
        good.replace("POST", "HEAD"),
        good.replace("name: t", "name: -"),
        good.replace("/grant-uid", "https://x/grant-uid?a=b"),
        format!("{post}expect: 100-continue\r\n{code}"),
        format!("{post}connection: upgrade\r\nupgrade: h2c\r\n{code}"),
        format!(
            "{post}transfer-encoding: chunked\r\n\r\na\r\n{start}\r\n{:x};x=y\r\n{end}\r\n0\r\na: b\r\n\r\n",
            end.len()
        ),
        format!("{post}x: {}\r\n{code}", "y".repeat(9000)),
        format!("{post}content-length: 2000\r\n\r\n{}", "z".repeat(2000)),
    ];
    let framed = [
        framed(&[CODE]),
        framed(&[start, end]),
        framed(&["another code"]),
    ];
    texts
        .into_iter()
        .map(String::into_bytes)
        .chain(framed)
        .collect()
}

/// What comes of this connection. Everything but its keys is the same each time.
pub(super) fn heard(bytes: &[u8]) -> Heard {
    static CA: OnceLock<Credential> = OnceLock::new();
    let cluster = Cluster::signed_by(CA.get_or_init(|| authority("site ca")), ALLOWED);
    let answers: Arc<Mutex<Vec<_>>> = Arc::default();
    let made = answers.clone();
    let seen = move |answer: &Response<_>| made.lock().unwrap().push(content(answer));
    let wire = at_once(async {
        let (ours, theirs) = duplex(PIECE);
        let source = [10, 0, 0, 1].into();
        let conversation = async {
            tokio::join!(
                talk(cluster.server(), source, ours, seen),
                stranger(theirs, bytes)
            )
        };
        let ((), wire) = timeout(LONGEST, conversation)
            .await
            .expect("a client who says no more is sent away");
        wire
    });
    let answers = std::mem::take(&mut *answers.lock().unwrap());
    Heard {
        answers,
        wire,
        counted: cluster.counted(),
    }
}

fn content<B>(answer: &Response<B>) -> (StatusCode, Bytes)
where
    B: hyper::body::Body<Error = std::convert::Infallible> + Clone,
{
    let body = answer.body().clone().collect().now_or_never();
    let body = body.expect("an answer is there at once");
    let Ok(body) = body;
    (answer.status(), body.to_bytes())
}

/// All that may be said to somebody who gets nothing.
fn refusals() -> Vec<(StatusCode, String)> {
    let refusals = [
        Refusal::NotPost,
        Refusal::BadBody,
        Refusal::BadHeader("name"),
        Refusal::BadHeader("subject"),
        Refusal::BadHeader(NONCE_HEADER),
        Refusal::UnknownGrant,
        Refusal::WrongCode,
        Refusal::UsedUp,
        Refusal::TooMany,
        Refusal::Unavailable,
    ];
    let said = |refusal: &Refusal| (refusal.status(), refusal.text());
    refusals.iter().map(said).collect()
}

/// Every status that was sent is one of ours, or of what speaks HTTP for us. In HTTP/2 it is not readable by itself.
fn assert_statuses(wire: &[u8], refusals: &[(StatusCode, String)]) {
    let wire = String::from_utf8_lossy(wire);
    // Neither a refusal nor a credential can hold this.
    for answer in wire.split("HTTP/1.").skip(1) {
        let status = answer.get(2..5).and_then(|status| status.parse().ok());
        let is_known = |status: &StatusCode| {
            let mut ours = refusals.iter().map(|(ours, _)| ours);
            *status == StatusCode::OK || OF_HTTP.contains(status) || ours.any(|ours| ours == status)
        };
        assert!(
            status.as_ref().is_some_and(is_known),
            "{answer:?} is in no contract"
        );
    }
}

/// Whether the word can come of these bytes by leaving some out: chunks and frames may stand between its letters.
fn is_spelt(word: &[u8], bytes: &[u8]) -> bool {
    let mut bytes = bytes.iter();
    word.iter().all(|letter| bytes.any(|byte| byte == letter))
}

/// A connection in HTTP/2 with one request whose body is these parts (RFC 9113; RFC 7541 for the headers).
fn framed(parts: &[&str]) -> Vec<u8> {
    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    const END_STREAM: u8 = 1;
    const END_HEADERS: u8 = 4;

    // Of the static table: `:method: POST`, `:scheme: https`; then literals, with a name of that table and without.
    let mut headers = vec![0x83, 0x87];
    for (index, name, value) in [(4, "", "/grant-uid"), (1, "", "x"), (0, "name", "t")] {
        headers.push(index);
        for text in [name, value].into_iter().filter(|text| !text.is_empty()) {
            headers.push(u8::try_from(text.len()).expect("a short text"));
            headers.extend(text.as_bytes());
        }
    }
    let mut wire = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    wire.extend(frame(SETTINGS, 0, 0, &[]));
    wire.extend(frame(HEADERS, END_HEADERS, 1, &headers));
    for part in parts {
        wire.extend(frame(DATA, 0, 1, part.as_bytes()));
    }
    wire.extend(frame(DATA, END_STREAM, 1, &[]));
    wire
}

fn frame(kind: u8, flags: u8, stream: u8, content: &[u8]) -> Vec<u8> {
    let length = u8::try_from(content.len()).expect("a short frame");
    [&[0, 0, length, kind, flags, 0, 0, 0, stream], content].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_seed_is_answered_as_it_should_be() {
        let statuses = |seed: &Vec<u8>| {
            run(seed);
            let answers = heard(seed).answers.into_iter();
            answers.map(|(status, _)| status.as_u16()).collect()
        };
        let seen: Vec<Vec<u16>> = seeds().iter().map(statuses).collect();
        let wanted: [&[u16]; 19] = [
            &[200],
            &[],
            &[200, 200, 404],
            &[200, 200, 200],
            &[200],
            &[403],
            &[404],
            &[405],
            &[405],
            &[400],
            &[200],
            &[200],
            &[200],
            &[200],
            &[],
            &[400],
            &[200],
            &[200],
            &[403],
        ];
        assert_eq!(seen, wanted);
    }
}
