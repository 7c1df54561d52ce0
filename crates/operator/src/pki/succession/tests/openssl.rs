//! What do OpenSSL, which the router verifies with, and Go's rule say of each way to follow a CA?
//!
//! The table of `facts/order.md` (e), done again. Where the machine has no `openssl`, the tests are counted as skipped.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use super::*;

/// How long OpenSSL may take to listen, or to shake hands.
const WITHIN: Duration = Duration::from_secs(20);

/// Whether there is an OpenSSL; if not, the test says that it did not run (`e2e/src/skip.rs`).
fn is_there(test: &str) -> bool {
    let is_there = Command::new("openssl").arg("version").output().is_ok();
    if !is_there && let Some(path) = std::env::var_os("SPANWIRE_SKIPS") {
        let file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(path);
        let _ = file.and_then(|mut file| writeln!(file, "{test}: there is no openssl"));
    }
    is_there
}

/// The three files of a credential.
fn store(folder: &Path, name: &str, credential: &Credential) -> [PathBuf; 3] {
    let files = [
        ("ca", credential.ca.as_str()),
        ("crt", &credential.certificate),
        ("key", &credential.key),
    ];
    files.map(|(suffix, content)| {
        let path = folder.join(format!("{name}.{suffix}"));
        std::fs::write(&path, content).unwrap();
        path
    })
}

/// What `openssl verify` says to somebody who trusts only this.
fn verifies(credential: &Credential, trusted: &str) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let [ca, crt, _] = store(folder.path(), "it", &trusting(credential, trusted));
    let output = Command::new("openssl")
        .args([
            "verify",
            "-attime",
            &NOW.to_string(),
            "-no-CApath",
            "-no-CAstore",
            "-CAfile",
        ])
        .arg(ca)
        .arg("-untrusted")
        .arg(&crt)
        .arg(&crt)
        .output()
        .unwrap();
    output.status.success()
}

/// A way to follow a CA: path lengths of old CA, new CA and bridge, and whether all have one name.
struct Way {
    old: Option<u8>,
    new: Option<u8>,
    bridge: Option<u8>,
    is_same_name: bool,
}

impl Way {
    /// Who trusts only the old one, the new one; and a credential of the new one.
    fn made(&self) -> (String, String, Credential) {
        let old = by_hand("one", self.old);
        let name = if self.is_same_name { "one" } else { "other" };
        let new = by_hand(name, self.new);
        let bridge = ca_params(name, self.bridge)
            .signed_by(new.key(), &old)
            .unwrap();
        let ca = Credential {
            ca: new.pem() + &old.pem(),
            certificate: new.pem() + &bridge.pem(),
            key: pem::section("PRIVATE KEY", new.key().serialized_der()),
        };
        let leaf = leaf(&ca);
        (old.pem(), new.pem(), leaf)
    }
}

#[test]
fn the_table_of_ways_to_follow_a_ca() {
    if !is_there("the_table_of_ways_to_follow_a_ca") {
        return;
    }
    let way = |old, new, bridge, is_same_name| Way {
        old,
        new,
        bridge,
        is_same_name,
    };
    // With each: does OpenSSL, does Go's rule take it to who trusts only the old CA?
    let ways = [
        ("no path length", way(None, None, None, false), true, true),
        (
            "path length 0",
            way(Some(0), Some(0), Some(0), false),
            false,
            false,
        ),
        (
            "CAs 1, bridge 0",
            way(Some(1), Some(1), Some(0), false),
            true,
            true,
        ),
        (
            "CAs 1, bridge 0, one name",
            way(Some(1), Some(1), Some(0), true),
            true,
            true,
        ),
        (
            "path length 0, one name",
            way(Some(0), Some(0), Some(0), true),
            true,
            false,
        ),
    ];
    for (name, way, by_openssl, by_go) in ways {
        let (old, new, leaf) = way.made();
        let chain = facts_of(&leaf.certificate);
        assert_eq!(verifies(&leaf, &old), by_openssl, "{name}: old only");
        assert_eq!(
            go_accepts(&chain, &facts_of(&old)[0]),
            by_go,
            "{name}: old only, Go"
        );
        assert!(verifies(&leaf, &new), "{name}: new only");
        assert!(
            go_accepts(&chain[..1], &facts_of(&new)[0]),
            "{name}: new only, Go"
        );
        // What is said of a Secret is what the router will find.
        let judged = facts::pair(
            Some(old.as_bytes()),
            leaf.certificate.as_bytes(),
            leaf.key.as_bytes(),
        );
        assert_eq!(
            judged.chain_error.is_none(),
            by_openssl,
            "{name}: {judged:?}"
        );
        let bare = Credential {
            certificate: facts_pem(&leaf, 0),
            ..trusting(&leaf, "")
        };
        assert!(!verifies(&bare, &old), "{name}: the bridge left out");
    }
}

#[test]
fn what_we_make_is_taken_by_who_trusts_any_of_three_cas_in_a_row() {
    if !is_there("what_we_make_is_taken_by_who_trusts_any_of_three_cas_in_a_row") {
        return;
    }
    let first = our_ca();
    let second = successor(&signer(&first));
    let third = successor(&signer(&second));
    for trusted in [
        &first.certificate,
        &facts_pem(&second, 0),
        &facts_pem(&third, 0),
    ] {
        assert!(verifies(&leaf(&third), trusted));
    }
    assert!(!verifies(&leaf(&third), &our_ca().certificate));
}

/// A handshake in which each side shows a credential and checks the other's against its own CAs and nothing else, and
/// the host's name too, as routers do.
fn shakes_hands(server: &Credential, client: &Credential) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let side = |name: &str, credential: &Credential| {
        let [ca, crt, key] = store(folder.path(), name, credential);
        let mut command = Command::new("openssl");
        command
            .arg(if name == "server" {
                "s_server"
            } else {
                "s_client"
            })
            .args([
                "-attime",
                &NOW.to_string(),
                "-verify_return_error",
                "-no-CApath",
                "-no-CAstore",
            ])
            .args(["-CAfile".as_ref(), ca.as_os_str()])
            .args([
                "-cert".as_ref(),
                crt.as_os_str(),
                "-cert_chain".as_ref(),
                crt.as_os_str(),
            ])
            .args(["-key".as_ref(), key.as_os_str()])
            .stderr(Stdio::null())
            .stdout(Stdio::piped());
        command
    };
    let listening = side("server", server)
        .args([
            "-accept",
            "127.0.0.1:0",
            "-naccept",
            "1",
            "-Verify",
            "9",
            "-www",
        ])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let mut listening = Ended(listening);
    let address = line(&mut listening.0, "ACCEPT ");
    let dialling = side("client", client)
        .args(["-connect", &address, "-quiet", "-verify", "9"])
        .args(["-verify_hostname", "a.example"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut dialling = Ended(dialling);
    let mut stdin = dialling.0.stdin.take().unwrap();
    // TLS 1.3 tells a client that it was refused only when it reads: so ask for something.
    let _ = stdin.write_all(b"GET / HTTP/1.0\r\n\r\n");
    let output = dialling.0.stdout.take().unwrap();
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        let _ = tell.send(lines.any(|line| line.starts_with("HTTP/1.0 200")));
    });
    told.recv_timeout(WITHIN)
        .expect("an answer or an end in time")
}

/// What follows these words in the first line of the output that begins with them.
fn line(child: &mut Child, words: &'static str) -> String {
    let output = child.stdout.take().unwrap();
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        let found = lines.find_map(|line| line.strip_prefix(words).map(str::to_owned));
        let _ = tell.send(found);
        // Read on, so that the writer does not stop.
        lines.for_each(drop);
    });
    told.recv_timeout(WITHIN)
        .expect("a line in time")
        .expect("the line")
}

/// A process that ends with the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn links_come_up_at_every_moment_of_a_rollover() {
    if !is_there("links_come_up_at_every_moment_of_a_rollover") {
        return;
    }
    let old = our_ca();
    let new = successor(&signer(&old));
    // Before the leaf follows its CA, and after; with remote sites from before, and from after.
    for server in [leaf(&old), leaf(&new)] {
        for client in [redeemed(&old), redeemed(&new)] {
            assert!(shakes_hands(&server, &client));
        }
    }
    let stranger = our_ca();
    assert!(
        !shakes_hands(&leaf(&new), &redeemed(&stranger)),
        "this test shows nothing"
    );
    let distrustful = trusting(&redeemed(&new), &stranger.ca);
    assert!(
        !shakes_hands(&leaf(&new), &distrustful),
        "this test shows nothing"
    );
}
