//! What is taken over from another site, whatever it answers to a redemption?
//!
//! The bytes are all that it says after the handshake: status, headers and body. Where one of [`FILES`] is named, it says
//! that file of a good credential instead: so an input is short and nearly all of it can be changed to some effect.

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hasher};
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::StatusCode;
use kube::api::DynamicObject;
use serde_json::Value;
use spanwire_api::Endpoint;
use spanwire_plan::facts::{CA_FILE, CERTIFICATE_FILE, KEY_FILE};
use spanwire_plan::labels;
use spanwire_plan::plan::StoredLink;
use spanwire_plan::world::Outcome;
use tokio::io::{AsyncReadExt, duplex};

use super::{HANG_UP, PIECE, assert_pair, at_once, http_request, pem, stranger};
use crate::mock::cluster::act;
use crate::redeem;
use crate::wiped::Wiped;

/// What stands for a file of a good credential, in base64.
const FILES: [(&str, &str); 3] = [
    ("@CA@", CA_FILE),
    ("@CERTIFICATE@", CERTIFICATE_FILE),
    ("@KEY@", KEY_FILE),
];
/// As much of a peer's words as our own texts share with nobody's by chance.
const QUOTE: usize = 24;

/// What is taken is a Secret as was ordered, with a key and Links that can be used; what is refused is not repeated.
pub fn run(bytes: &[u8]) {
    is_taken(bytes);
}

/// Answers to begin with: as our server and as upstream's writes it, in each way to send it; and refusals.
pub fn seeds() -> Vec<Vec<u8>> {
    let good = good();
    let body = FILES.iter().fold(good.body.clone(), |body, (mark, file)| {
        body.replace(&good.files[*file], mark)
    });
    let (secret, link) = body.split_at(body.rfind("---\n").expect("a Link behind the Secret"));
    let cut = |body: &str| format!("HTTP/1.1 200 OK\r\n\r\n{body}");
    let length = good.body.len();
    let seeds = [
        cut(&body),
        cut(&format!("{secret}{}", link.repeat(8))),
        cut(&format!("{secret}{}", link.repeat(9))),
        cut(&format!("{link}{secret}")),
        cut(&body.replace("10.9.8.7", "2001:db8::1")),
        cut(&body.replace("10.9.8.7", "host_1.example.")),
        cut(&body.replace("10.9.8.7", "http://x/")),
        cut(&body.replace("kind: Link", "kind: Role")),
        format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}"),
        format!(
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{length:x}\r\n{body}\r\n0\r\n\r\n"
        ),
        format!(
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n{body}"
        ),
        "HTTP/1.1 403 Forbidden\r\n\r\nRedemption of access token refused\n".to_owned(),
        "HTTP/1.1 404 Not Found\r\n\r\nNo such access granted\n".to_owned(),
        "HTTP/1.1 302 Found\r\nlocation: https://x/\r\ncontent-length: 0\r\n\r\n".to_owned(),
        "HTTP/1.1 503 \r\n\r\n".to_owned(),
    ];
    // What has no length ends with the connection.
    let said = |seed: String| [seed.as_bytes(), &[HANG_UP]].concat();
    seeds.into_iter().map(said).collect()
}

/// Whether the answer is taken; in either case, what is promised of it holds.
pub(super) fn is_taken(bytes: &[u8]) -> bool {
    let bytes = spelt_out(bytes);
    match stored(&bytes) {
        Ok(secret) => {
            assert_ordered(&secret);
            true
        }
        Err(outcome) => {
            let outcome = format!("{:?}", outcome.expect("nobody else leads"));
            assert!(
                !is_quoted(&bytes, &outcome),
                "the peer is quoted: {outcome}"
            );
            false
        }
    }
}

/// Whether a good part of the words is in the text. By digests, because a fuzzer learns what it sees compared, and
/// would put our own words in the peer's mouth.
fn is_quoted(words: &[u8], text: &str) -> bool {
    let digest = |part: &[u8]| {
        let mut hasher = DefaultHasher::new();
        hasher.write(part);
        hasher.finish()
    };
    let said: HashSet<u64> = words.windows(QUOTE).map(digest).collect();
    let mut told = text.as_bytes().chunks_exact(QUOTE);
    told.any(|part| said.contains(&digest(part)))
}

fn stored(bytes: &[u8]) -> Result<Wiped<DynamicObject>, Option<Outcome>> {
    at_once(async {
        let (ours, mut theirs) = duplex(PIECE);
        let peer = async {
            // What is said before there is a request is no answer.
            let _ = theirs.read(&mut [0; PIECE]).await;
            stranger(theirs, bytes).await
        };
        let order = act(1);
        tokio::join!(redeem::secret(&order, ours), peer).0
    })
}

/// An answer of our own server, and the files in it, in base64.
struct Good {
    body: String,
    files: BTreeMap<String, String>,
}

fn good() -> &'static Good {
    static GOOD: LazyLock<Good> = LazyLock::new(|| {
        let request = http_request::seeds().swap_remove(0);
        let mut answers = http_request::heard(&request).answers;
        let (status, body) = answers.pop().expect("an answer to a good request");
        assert_eq!(status, StatusCode::OK);
        let body = String::from_utf8(body.to_vec()).expect("an answer is text");
        let documents: Vec<Value> = serde_saphyr::from_multiple(&body).expect("an answer is YAML");
        let files = serde_json::from_value(documents[0]["data"].clone());
        let files = files.expect("the first is a Secret");
        Good { body, files }
    });
    &GOOD
}

/// The bytes with files in the places of their marks.
fn spelt_out(bytes: &[u8]) -> Vec<u8> {
    let mut left = bytes;
    let mut all = Vec::new();
    while let Some((first, rest)) = left.split_first() {
        let mark = |(mark, _): &&(&str, &str)| left.starts_with(mark.as_bytes());
        if let Some((mark, file)) = FILES.iter().find(mark) {
            all.extend(good().files[*file].as_bytes());
            left = &left[mark.len()..];
        } else {
            all.push(*first);
            left = rest;
        }
    }
    all
}

/// Nothing is in it that was not ordered, but for three files and an annotation; and those are sound.
fn assert_ordered(secret: &DynamicObject) {
    let mut secret = serde_json::to_value(secret).expect("it can be sent");
    let data = secret
        .as_object_mut()
        .and_then(|secret| secret.remove("data"));
    let annotations = &mut secret["metadata"]["annotations"];
    let links = annotations
        .as_object_mut()
        .and_then(|all| all.remove(labels::LINKS));
    assert_eq!(secret, act(1).secret.object);
    assert_data(&data.expect("it has data"));
    let links = links
        .as_ref()
        .and_then(Value::as_str)
        .expect("it has links");
    assert_links(&serde_json::from_str::<Vec<StoredLink>>(links).expect("the plan reads it"));
}

fn assert_data(data: &Value) {
    let file = |name: &str| {
        let base64 = data[name].as_str().expect("each file is text");
        STANDARD.decode(base64).expect("a file is base64")
    };
    let [ca, certificate, key] = [CA_FILE, CERTIFICATE_FILE, KEY_FILE].map(file);
    assert_eq!(
        data.as_object().map(serde_json::Map::len),
        Some(3),
        "{data}"
    );
    // Written by us, so reading and writing it once more changes nothing.
    for (name, file) in [(CA_FILE, &ca), (CERTIFICATE_FILE, &certificate)] {
        assert_eq!(pem::rewritten(name, file).as_deref(), Some(&**file));
    }
    assert_eq!(pem::rewritten_key(&key).as_deref(), Some(&*key));
    assert_pair(&certificate, &key);
}

fn assert_links(links: &[StoredLink]) {
    assert!((1..=8).contains(&links.len()), "{} links", links.len());
    for (link, number) in links.iter().zip(1..) {
        let is_named = link.name == format!("t-{number}") || links.len() == 1 && link.name == "t";
        assert!(is_named, "{:?} is no name for link {number}", link.name);
        let count = link.endpoints.len();
        assert!((1..=16).contains(&count), "{count} endpoints");
        for Endpoint {
            name,
            host,
            port,
            group,
        } in &link.endpoints
        {
            assert!(
                ["inter-router", "edge"].contains(&name.as_str()),
                "{name:?}"
            );
            let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:".contains(&byte);
            let is_text = !host.is_empty() && host.len() <= 253 && host.bytes().all(is_host);
            let is_ip = host.parse::<std::net::IpAddr>().is_ok();
            assert!(
                is_text && (is_ip || !host.contains(':')),
                "{host:?} is no host"
            );
            let canonical = port.parse::<u16>().ok().filter(|port| *port != 0);
            let digits = port.trim_start_matches('0');
            assert!(
                canonical.is_some_and(|port| port.to_string() == digits),
                "{port:?}"
            );
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
            assert!(
                group.len() <= 63 && group.bytes().all(is_plain),
                "{group:?}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_seed_is_taken_or_not() {
        let longest = seeds().iter().map(Vec::len).max();
        assert!(longest < Some(4096), "a file is not replaced by its mark");
        let taken: Vec<bool> = seeds().iter().map(|seed| is_taken(seed)).collect();
        let mut wanted = [false; 15];
        for good in [0, 1, 3, 4, 5, 8, 9] {
            wanted[good] = true;
        }
        assert_eq!(taken, wanted);
    }

    #[test]
    fn a_quotation_is_noticed() {
        let words = "a peer says: what nobody else would ever come to say, and more";
        assert!(is_quoted(words.as_bytes(), &format!("He said {words:?}")));
        assert!(!is_quoted(
            words.as_bytes(),
            "He said what nobody else would repeat, and less"
        ));
    }

    #[test]
    #[should_panic(expected = "assertion")]
    fn a_secret_of_another_name_is_not_what_was_ordered() {
        let mut secret = stored(&spelt_out(&seeds()[0])).unwrap();
        secret.metadata.name = Some("other".to_owned());
        assert_ordered(&secret);
    }
}
