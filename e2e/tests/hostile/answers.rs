//! Who is asked for a link, and answers something else?

use std::fmt::Write as _;
use std::io::Write as _;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use spanwire_e2e::credential::{Authority, Files, Holder};
use spanwire_e2e::kubectl::{condition, has_condition, text};
use spanwire_e2e::peer::{Caller, Peer};
use spanwire_e2e::scene::ours;
use spanwire_e2e::wait;

use super::{MARKER, MEMORY, Stage, TAKES, WITHIN};

/// What an answer may end in.
const FINAL: [&str; 5] = [
    "AnswerInvalid",
    "CodeRefused",
    "Expired",
    "PeerUnreachable",
    "UsedUp",
];
/// Where the peer answers as it should.
const GOOD: &str = "good";
/// Tokens at whose url nobody answers: fewer than one namespace may have at once (`operator/src/redeem.rs`).
const DEAD: usize = 30;
/// How soon a good one is redeemed all the same: sooner than one of them is given up.
const PROMPT: Duration = Duration::from_secs(8);
/// The most that is ever written of an endless answer.
const ENDLESS: usize = 64 * 1024 * 1024;

type Answer = Box<dyn Fn(&mut Caller) -> std::io::Result<()> + Send + Sync>;

/// How many answered, and what that cost in kilobytes.
pub(super) fn are_refused(stage: &Stage) -> Result<(usize, u64)> {
    let files = Authority::new("peer's site")?.files("peer", &Holder::Router(Vec::new()))?;
    let answers = answers(&files);
    let names: Vec<&str> = answers.iter().map(|(name, _)| *name).collect();
    let paths: Vec<(String, Answer)> = answers
        .into_iter()
        .map(|(name, answer)| (path(name), answer))
        .collect();
    let good = page(200, "", secret(&files) + &link("a.example", "55671"));
    let peer = Peer::start(move |request, caller| {
        if request.path == GOOD {
            let _ = good(caller);
        }
        let answer = paths.iter().find(|(known, _)| *known == request.path);
        // A caller that breaks off is what is hoped for.
        let _ = answer.map(|(_, answer)| answer(caller));
    })?;

    let cost = stage.operator.grows(|| {
        for name in &names {
            stage.apply(TAKES, &token(&peer, &path(name), &path(name)))?;
        }
        names
            .iter()
            .try_for_each(|name| is_refused(stage, name).with_context(|| (*name).to_owned()))
    })?;
    ensure!(cost <= MEMORY, "{cost} kB for hostile answers");
    ensure!(peer.hits("elsewhere") == 0, "a redirection was followed");
    for name in &names {
        ensure!(peer.hits(&path(name)) > 0, "{name}: nobody asked");
    }
    for kind in ["links.skupper.io", "secrets"] {
        let objects = stage.kubectl().items(&[kind, "--namespace", TAKES])?;
        let made = objects
            .iter()
            .map(|object| text(&object["metadata"]["name"]))
            .filter(|made| names.iter().any(|name| path(name) == **made));
        let made: Vec<&str> = made.collect();
        ensure!(made.is_empty(), "{kind} were made: {made:?}");
    }
    for number in 0..DEAD {
        stage.apply(TAKES, &token(&peer, &format!("dead-{number}"), "no-answer"))?;
    }
    is_taken(stage, &peer)?;
    Ok((names.len(), cost))
}

fn token(peer: &Peer, name: &str, path: &str) -> Value {
    let code = format!("{MARKER}{}", "c".repeat(18));
    let spec = json!({"url": peer.url(path), "code": code, "ca": peer.ca()});
    ours("AccessToken", name, &spec)
}

/// A good answer of the same peer is taken, under the token's name, and does not wait for those that do not come.
fn is_taken(stage: &Stage, peer: &Peer) -> Result<()> {
    stage.apply(TAKES, &token(peer, GOOD, GOOD))?;
    let kubectl = stage.kubectl();
    wait::until("the good token to be redeemed", PROMPT, || {
        let token = kubectl.find(&["accesstoken", GOOD, "--namespace", TAKES])?;
        Ok(token.filter(|token| has_condition(token, "Redeemed")))
    })?;
    for kind in ["link", "secret"] {
        let made = kubectl.find(&[kind, GOOD, "--namespace", TAKES])?;
        ensure!(made.is_some(), "there is no {kind} {GOOD}");
    }
    Ok(())
}

/// Waits for what the token says in the end, which has nothing of the answer in it.
fn is_refused(stage: &Stage, name: &str) -> Result<()> {
    let kubectl = stage.kubectl();
    // They take turns: some wait for those that are slow.
    let token = wait::until("the token's end", WITHIN * 4, || {
        let token = kubectl.find(&["accesstoken", &path(name), "--namespace", TAKES])?;
        let reason = token
            .as_ref()
            .and_then(|token| Some(text(&condition(token, "Redeemed")?["reason"]).to_owned()));
        Ok(token.filter(|_| reason.is_some_and(|reason| FINAL.contains(&reason.as_str()))))
    })?;
    ensure!(
        !token["status"].to_string().contains(MARKER),
        "{}",
        token["status"]
    );
    Ok(())
}

fn path(name: &str) -> String {
    name.replace([' ', '/', ','], "-").to_lowercase()
}

fn secret(files: &Files) -> String {
    let encode = |text: &str| STANDARD.encode(text);
    format!(
        "---\napiVersion: v1\nkind: Secret\ntype: kubernetes.io/tls\nmetadata: {{name: skupper-site-ca}}\ndata:\n  \
         ca.crt: {}\n  tls.crt: {}\n  tls.key: {}\n",
        encode(&files.ca),
        encode(&files.certificate),
        encode(&files.key)
    )
}

fn link(host: &str, port: &str) -> String {
    format!(
        "---\napiVersion: skupper.io/v2alpha1\nkind: Link\nmetadata: {{name: x}}\nspec:\n  endpoints:\n  - {{name: \
         inter-router, host: \"{host}\", port: \"{port}\"}}\n"
    )
}

/// A whole answer with this body.
fn page(status: u16, headers: &str, body: impl Into<Vec<u8>>) -> Answer {
    let body = body.into();
    let head = format!(
        "HTTP/1.1 {status} {MARKER}\r\n{headers}content-length: {}\r\n\r\n",
        body.len()
    );
    raw([head.as_bytes(), &body].concat())
}

/// These bytes, and no more.
fn raw(bytes: impl Into<Vec<u8>>) -> Answer {
    let bytes = bytes.into();
    Box::new(move |caller| caller.write_all(&bytes))
}

/// This, and then the other again and again.
fn endless(head: &str, part: &str) -> Answer {
    let (head, part) = (head.to_owned(), part.to_owned());
    Box::new(move |caller| {
        caller.write_all(head.as_bytes())?;
        for _ in 0..ENDLESS / part.len() {
            caller.write_all(part.as_bytes())?;
        }
        Ok(())
    })
}

/// A byte a second, for longer than anybody waits.
fn slow(head: &str) -> Answer {
    let head = head.to_owned();
    Box::new(move |caller| {
        caller.write_all(head.as_bytes())?;
        for _ in 0..30 {
            caller.write_all(b"x")?;
            caller.flush()?;
            thread::sleep(Duration::from_secs(1));
        }
        Ok(())
    })
}

fn answers(files: &Files) -> Vec<(&'static str, Answer)> {
    const OK: &str = "HTTP/1.1 200 OK\r\n";
    let good = secret(files) + &link("a.example", "55671");
    let yaml = |text: String| page(200, "", text);
    let elsewhere = "location: /elsewhere\r\n";
    let other = Authority::new("other").and_then(|other| other.files("x", &Holder::Authority));
    let mismatched = Files {
        key: other.map(|other| other.key).unwrap_or_default(),
        ..files.clone()
    };
    let many_certificates = Files {
        ca: files.ca.repeat(80),
        ..files.clone()
    };
    let mut bomb = format!("a0: &a0 [{MARKER},{MARKER}]\n");
    for level in 1..30 {
        let last = level - 1;
        let _ = writeln!(bomb, "a{level}: &a{level} [*a{last},*a{last},*a{last}]");
    }
    vec![
        ("endless body", endless(&format!("{OK}\r\n"), &good)),
        (
            "endless chunks",
            endless(
                &format!("{OK}transfer-encoding: chunked\r\n\r\n"),
                "6\r\nMARKER\r\n",
            ),
        ),
        ("endless headers", endless(OK, "x: MARKER\r\n")),
        ("endless header", endless("HTTP/1.1 200 OK\r\nx: ", MARKER)),
        (
            "endless interim answers",
            endless("", "HTTP/1.1 103 MARKER\r\n\r\n"),
        ),
        ("slow headers", slow(OK)),
        (
            "slow body",
            slow(&format!("{OK}content-length: 1000\r\n\r\n")),
        ),
        (
            "no answer",
            Box::new(|_| {
                thread::sleep(Duration::from_secs(20));
                Ok(())
            }),
        ),
        ("no answer and the end", raw("")),
        ("half a head", raw("HTTP/1.1 20")),
        (
            "half a body",
            raw(format!("{OK}content-length: 1000\r\n\r\nMARKER")),
        ),
        (
            "a body of a terabyte",
            raw(format!("{OK}content-length: 1099511627776\r\n\r\nMARKER")),
        ),
        (
            "two lengths",
            raw(format!(
                "{OK}content-length: 1\r\ncontent-length: 2\r\n\r\nMARKER"
            )),
        ),
        (
            "a chunk of any size",
            raw(format!(
                "{OK}transfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\nMARKER"
            )),
        ),
        ("not HTTP", raw("MARKER MARKER MARKER\r\n\r\n")),
        (
            "a status of its own",
            raw("HTTP/1.1 999 MARKER\r\ncontent-length: 0\r\n\r\n"),
        ),
        ("moved", page(301, elsewhere, MARKER)),
        ("moved for now", page(307, elsewhere, MARKER)),
        (
            "moved without a body",
            page(303, "location: file:///etc/passwd\r\n", ""),
        ),
        (
            "packed",
            page(
                200,
                "content-encoding: gzip\r\n",
                [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3],
            ),
        ),
        ("no content", raw("HTTP/1.1 204 OK\r\n\r\n")),
        ("no text", page(200, "", [0xff, 0xfe, 0, 1])),
        ("an empty page", yaml(String::new())),
        ("a page for people", yaml(format!("<html>{MARKER}</html>"))),
        ("a bomb of aliases", yaml(bomb + "---\n" + &good)),
        ("15000 documents", yaml("---\n".repeat(15_000) + MARKER)),
        ("deep nesting", yaml("[".repeat(60_000))),
        (
            "a key twice",
            yaml(good.replace("kind: Secret", "kind: Secret\nkind: Secret")),
        ),
        (
            "another kind",
            yaml(good.replace("kind: Link", "kind: ClusterRoleBinding")),
        ),
        (
            "a kind of its own",
            yaml(good.replace("kind: Link", "kind: MARKER")),
        ),
        ("two secrets", yaml(secret(files) + &good)),
        ("no secret", yaml(link("a.example", "55671"))),
        ("no link", yaml(secret(files))),
        (
            "nine links",
            yaml(secret(files) + &link("a.example", "55671").repeat(9)),
        ),
        (
            "another type",
            yaml(good.replace("kubernetes.io/tls", "Opaque")),
        ),
        (
            "the key of another",
            yaml(secret(&mismatched) + &link("a.example", "55671")),
        ),
        (
            "a huge CA",
            yaml(secret(&many_certificates) + &link("a.example", "55671")),
        ),
        (
            "a host that is a path",
            yaml(secret(files) + &link("../../MARKER", "55671")),
        ),
        (
            "a host with a line",
            yaml(secret(files) + &link("a\\nMARKER", "55671")),
        ),
        ("port 0", yaml(secret(files) + &link("a.example", "0"))),
        ("refused at length", page(403, "", MARKER.repeat(20_000))),
        ("unknown at length", page(404, "", MARKER.repeat(20_000))),
        ("failed at length", page(500, "", MARKER.repeat(20_000))),
        (
            "used up and more",
            page(404, "", format!("No such access granted {MARKER}")),
        ),
    ]
}
