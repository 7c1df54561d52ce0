//! Who knocks at the door, and is sent away?

use std::io::{Read as _, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use spanwire_e2e::redeemer::Grant;

use super::{MARKER, MEMORY, Stage, WITHIN};

/// What a stranger sends inside of TLS.
struct Knock {
    name: &'static str,
    bytes: Vec<u8>,
    pace: Pace,
}

/// How they send it.
enum Pace {
    /// All of it, and then nothing more.
    AtOnce,
    /// Ten bytes a second, and it does not end.
    Slowly,
    /// As fast as it goes, and it does not end.
    Endlessly,
}

/// How many knocked, and what that cost in kilobytes.
pub(super) fn are_refused(stage: &Stage) -> Result<(usize, u64)> {
    let grant = stage.grant("door")?;
    let knocks = knocks(&grant);
    let naked: [(&str, &[u8]); 3] = [
        ("nothing at all", b""),
        ("HTTP without TLS", b"POST / HTTP/1.1\r\n\r\n"),
        ("junk for a handshake", &[0x16; 4096]),
    ];
    let cost = stage.operator.grows(|| {
        thread::scope(|scope| {
            let inside = knocks.iter().map(|knock| {
                let grant = &grant;
                scope.spawn(move || knock.at(stage, grant).context(knock.name))
            });
            let outside = naked
                .iter()
                .map(|(name, bytes)| scope.spawn(|| plain(stage, bytes).context(*name)));
            let all: Vec<_> = inside.chain(outside).collect();
            all.into_iter().try_for_each(|one| {
                let ended = one.join();
                ended.map_err(|_| anyhow::anyhow!("a stranger panicked"))?
            })
        })
    })?;
    ensure!(
        grant.redemptions(&stage.kubectl())? == 0,
        "a stranger was let in"
    );
    ensure!(cost <= MEMORY, "{cost} kB for hostile requests");
    stage.redeem(&grant)?;
    Ok((knocks.len() + naked.len(), cost))
}

fn knocks(grant: &Grant) -> Vec<Knock> {
    let uid = &grant.uid;
    let code = &grant.code;
    let post = |headers: &str, body: &str| {
        format!("POST /{uid} HTTP/1.1\r\nhost: x\r\n{headers}\r\n{body}").into_bytes()
    };
    let with = |header: String| post(&format!("{header}\r\ncontent-length: 24\r\n"), code);
    let long = |length: usize| "y".repeat(length);
    let mut rapid = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    rapid.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
    let reset = [
        [0, 0, 1, 1, 5, 0, 0, 0, 1, 0x82].as_slice(),
        &[0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 8],
    ]
    .concat();
    let reset = [rapid.clone(), reset.repeat(5_000)].concat();
    let ping = [
        rapid.clone(),
        [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8].repeat(5_000),
    ];
    let continuation = [
        rapid.clone(),
        [0, 0, 1, 1, 0, 0, 0, 0, 1, 0x82].to_vec(),
        [&[0, 0x10, 0, 9, 0, 0, 0, 0, 1][..], &[0x40; 4096]]
            .concat()
            .repeat(200),
    ];
    let all = [
        (
            "junk",
            [MARKER.as_bytes(), &[0xff; 512]].concat(),
            Pace::AtOnce,
        ),
        (
            "a body that is no code",
            post("content-length: 2000\r\n", &long(2000)),
            Pace::AtOnce,
        ),
        (
            "a body of a gigabyte",
            post("content-length: 1073741824\r\n", ""),
            Pace::Endlessly,
        ),
        (
            "a body without an end",
            post("transfer-encoding: chunked\r\n", "7fffffff\r\n"),
            Pace::Endlessly,
        ),
        (
            "a chunk of any size",
            post("transfer-encoding: chunked\r\n", "ffffffffffffffffff\r\n"),
            Pace::AtOnce,
        ),
        (
            "a body that does not come",
            post("content-length: 24\r\n", "x"),
            Pace::AtOnce,
        ),
        (
            "a length below nothing",
            post("content-length: -1\r\n", code),
            Pace::AtOnce,
        ),
        (
            "two lengths",
            post("content-length: 24\r\ncontent-length: 25\r\n", code),
            Pace::AtOnce,
        ),
        (
            "a length and chunks",
            post(
                "content-length: 24\r\ntransfer-encoding: chunked\r\n",
                "0\r\n\r\nPOST",
            ),
            Pace::AtOnce,
        ),
        (
            "a method of its own",
            format!("{MARKER} /{uid} HTTP/1.1\r\nhost: x\r\n\r\n").into(),
            Pace::AtOnce,
        ),
        (
            "a tunnel",
            format!("CONNECT {uid}:443 HTTP/1.1\r\nhost: x\r\n\r\n").into(),
            Pace::AtOnce,
        ),
        (
            "an old version",
            format!("POST /{uid}\r\n\r\n{code}").into(),
            Pace::AtOnce,
        ),
        (
            "a long path",
            format!("POST /{} HTTP/1.1\r\nhost: x\r\n\r\n", long(16_000)).into(),
            Pace::AtOnce,
        ),
        (
            "a path with a zero",
            format!("POST /{uid}\0 HTTP/1.1\r\nhost: x\r\n\r\n").into(),
            Pace::AtOnce,
        ),
        (
            "headers of 9 kB",
            with(format!("x: {}", long(9_000))),
            Pace::AtOnce,
        ),
        (
            "a thousand headers",
            with("a: b\r\n".repeat(1_000) + "a: b"),
            Pace::AtOnce,
        ),
        (
            "a header without an end",
            format!("POST /{uid} HTTP/1.1\r\nx: ").into(),
            Pace::Endlessly,
        ),
        (
            "a name for an object of others",
            with("name: ../../secrets/x".to_owned()),
            Pace::AtOnce,
        ),
        (
            "two names",
            with("name: a\r\nname: b".to_owned()),
            Pace::AtOnce,
        ),
        (
            "a subject with a tab",
            with("subject: a\tb".to_owned()),
            Pace::AtOnce,
        ),
        (
            "a long subject",
            with(format!("subject: {}", long(300))),
            Pace::AtOnce,
        ),
        (
            "a long nonce",
            with(format!("redemption-nonce: {}", long(200))),
            Pace::AtOnce,
        ),
        (
            "a wrong code",
            post("content-length: 24\r\n", &long(24)),
            Pace::AtOnce,
        ),
        (
            "a code in the path",
            format!("POST /{code} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n").into(),
            Pace::AtOnce,
        ),
        ("slow headers", post("", ""), Pace::Slowly),
        (
            "a slow body",
            post("content-length: 2000\r\n", ""),
            Pace::Slowly,
        ),
        ("nothing", Vec::new(), Pace::AtOnce),
        ("HTTP/2 and resets", reset, Pace::AtOnce),
        ("HTTP/2 and pings", ping.concat(), Pace::AtOnce),
        (
            "HTTP/2 and headers without an end",
            continuation.concat(),
            Pace::AtOnce,
        ),
    ];
    all.into_iter()
        .map(|(name, bytes, pace)| Knock { name, bytes, pace })
        .collect()
}

impl Knock {
    /// Knocks, and waits until the door is closed; fails if it is opened, or stays ajar.
    fn at(&self, stage: &Stage, grant: &Grant) -> Result<()> {
        let start = Instant::now();
        let mut stream = grant.call(Ipv4Addr::LOCALHOST, stage.operator.grants())?;
        // Whoever is cut off while he sends may still be told why.
        let _ = self.send(&mut stream, start);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let took = start.elapsed();
        ensure!(took < WITHIN, "the door was ajar for {took:.1?}");
        let answer = String::from_utf8_lossy(&answer);
        let is_open = answer.contains("HTTP/1.1 200") || answer.contains("kind: Secret");
        ensure!(!is_open && !answer.contains(MARKER), "{answer}");
        Ok(())
    }

    fn send(&self, stream: &mut impl Write, start: Instant) -> std::io::Result<()> {
        let more: (&[u8], Duration) = match self.pace {
            Pace::AtOnce => (b"", Duration::ZERO),
            Pace::Slowly => (b"x", Duration::from_millis(100)),
            Pace::Endlessly => (&[b'x'; 4096], Duration::ZERO),
        };
        stream.write_all(&self.bytes)?;
        stream.flush()?;
        while !more.0.is_empty() && start.elapsed() < WITHIN {
            stream.write_all(more.0)?;
            stream.flush()?;
            thread::sleep(more.1);
        }
        Ok(())
    }
}

/// Knocks without TLS.
fn plain(stage: &Stage, bytes: &[u8]) -> Result<()> {
    let start = Instant::now();
    let mut stream = TcpStream::connect(stage.operator.grants())?;
    stream.set_read_timeout(Some(WITHIN))?;
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    ensure!(start.elapsed() < WITHIN, "the door was ajar");
    ensure!(!String::from_utf8_lossy(&answer).contains("HTTP"));
    Ok(())
}
