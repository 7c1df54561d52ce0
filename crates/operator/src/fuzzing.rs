//! What holds whatever a stranger sends?
//!
//! Each module is a target: `run` does with a stranger's bytes what the operator would do with them, and panics where a
//! promise is broken; `seeds` are inputs to begin with, made when they are asked for because there are keys in them.
//! The programs that call them are in `fuzz/`, and `cargo xtask fuzz` runs those. The tests here keep the seeds good: one
//! that is refused at the door leads a fuzzer nowhere.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "to panic is how a fuzzer is told"
)]

pub mod http_request;
pub mod peer_answer;
pub mod pem;

use rustls::SignatureScheme;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use spanwire_plan::facts::CERTIFICATE_FILE;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use crate::facts::{certificates, parsed, private_key};

/// What is under way between two ends of a connection at once: little, so that long texts come in pieces.
const PIECE: usize = 1024;
/// The last byte of a stranger who ends the connection, which he does not send: ASCII's end of transmission.
const HANG_UP: u8 = 4;

/// Does this with a clock that jumps to whatever is waited for, so that no deadline costs time.
fn at_once<T>(work: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build();
    runtime.expect("a runtime without I/O").block_on(work)
}

/// Says this and hears what is answered, to its end. Behind [`HANG_UP`] there is nothing more to come; elsewhere there
/// is only silence.
async fn stranger(stream: DuplexStream, bytes: &[u8]) -> Vec<u8> {
    let (mut ear, mut mouth) = tokio::io::split(stream);
    let say = async {
        let (words, is_end) = match bytes {
            [words @ .., HANG_UP] => (words, true),
            words => (words, false),
        };
        // Who is hung up on says no more.
        if mouth.write_all(words).await.is_ok() && is_end {
            let _ = mouth.shutdown().await;
        }
    };
    let mut heard = Vec::new();
    let _ = tokio::join!(say, ear.read_to_end(&mut heard));
    heard
}

/// What this key signs verifies with the first of these certificates.
fn assert_pair(certificate: &[u8], key: &[u8]) {
    const MESSAGE: &[u8] = b"any message";

    let key = private_key(key).expect("a key that was taken is read");
    let key = any_supported_type(&key).expect("a key that was taken is of a known kind");
    let chain = certificates(CERTIFICATE_FILE, certificate).expect("what was taken is read");
    let chain = parsed(CERTIFICATE_FILE, &chain).expect("what was taken is read");
    let known = default_provider().signature_verification_algorithms.mapping;
    let schemes: Vec<SignatureScheme> = known.iter().map(|(scheme, _)| *scheme).collect();
    let signer = key.choose_scheme(&schemes).expect("a way to sign");
    let signature = signer.sign(MESSAGE).expect("the key signs");
    let public_key = &*chain[0].public_key().subject_public_key.data;
    let mut ways = known
        .iter()
        .filter(|(scheme, _)| *scheme == signer.scheme())
        .flat_map(|(_, ways)| ways.iter());
    assert!(
        ways.any(|way| way
            .verify_signature(public_key, MESSAGE, &signature)
            .is_ok()),
        "a key was taken that is another certificate's"
    );
}
