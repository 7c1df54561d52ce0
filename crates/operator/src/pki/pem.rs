//! How is DER written as PEM so that no copy of a key stays behind?
//!
//! By hand, because the encoders at hand leave what they encode in freed memory.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls_pki_types::PrivateKeyDer;
use zeroize::Zeroizing;

/// Characters on a line (RFC 7468 §2).
const LINE: usize = 64;
/// Room for the labels: their frames have 32 characters and two line feeds.
const FRAME: usize = 64;

/// One section with this label.
pub(crate) fn section(label: &str, der: &[u8]) -> Zeroizing<String> {
    let base64 = Zeroizing::new(STANDARD.encode(der));
    // Never grown, so never copied.
    let capacity = base64.len() + base64.len() / LINE + 2 * label.len() + FRAME;
    let mut pem = Zeroizing::new(String::with_capacity(capacity));
    let allocated = pem.capacity();
    for part in ["-----BEGIN ", label, "-----\n"] {
        pem.push_str(part);
    }
    let mut rest = base64.as_str();
    while !rest.is_empty() {
        let (line, behind) = rest.split_at(rest.len().min(LINE));
        pem.push_str(line);
        pem.push('\n');
        rest = behind;
    }
    for part in ["-----END ", label, "-----\n"] {
        pem.push_str(part);
    }
    debug_assert!(
        pem.capacity() == allocated,
        "a copy of the key was left behind"
    );
    pem
}

/// One private key, in the form that it is in.
pub(crate) fn private_key(key: &PrivateKeyDer<'_>) -> Zeroizing<String> {
    let label = match key {
        PrivateKeyDer::Pkcs1(_) => "RSA PRIVATE KEY",
        PrivateKeyDer::Sec1(_) => "EC PRIVATE KEY",
        _ => "PRIVATE KEY",
    };
    section(label, key.secret_der())
}

/// One certificate.
pub(crate) fn certificate(der: &[u8]) -> String {
    std::mem::take(&mut *section("CERTIFICATE", der))
}
