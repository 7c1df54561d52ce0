//! What is believed of certificates and keys, whatever is in their files?
//!
//! The bytes are up to three files with [`MARK`] between them: `tls.crt`, `tls.key` and `ca.crt`, in PEM. Where the first
//! byte is one of [`DER`] they are DER instead, and PEM is made of them here: so a change is one of a certificate, not one
//! of its base64.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, PKCS_RSA_SHA256};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer};
use spanwire_plan::facts::{CA_FILE, CERTIFICATE_FILE, KEY_FILE};

use super::assert_pair;
use crate::facts::{certificates, pair, private_key, secret_facts};
use crate::mock::cluster::{authority, order, signed};
use crate::pki::{self, Credential, Signer, pem};

/// What stands between two files.
const MARK: &[u8] = b"--8<--";
/// The first byte where DER follows: the key is PKCS#8, SEC1 or PKCS#1.
const DER: [u8; 3] = [0, 1, 2];

/// What is taken for a pair is one, what a CA signs verifies, and what we write we read as it was.
pub fn run(bytes: &[u8]) {
    let files = Files::of(bytes);
    let facts = secret_facts(&files.secret());
    for (name, file) in [(CERTIFICATE_FILE, &files.certificate), (CA_FILE, &files.ca)] {
        let told = facts.files.get(name).expect("each file is told of");
        let is_read = rewritten(name, file).is_some_and(|once| {
            assert_eq!(rewritten(name, &once).as_ref(), Some(&once));
            true
        });
        assert!(
            is_read || told.error.is_some(),
            "{name} has certificates that nobody reads"
        );
    }
    if let Some(once) = rewritten_key(&files.key) {
        assert_eq!(rewritten_key(&once).as_ref(), Some(&once));
    }
    let told = facts.pair.expect("there are both files");
    if told.key_error.is_none() {
        assert_pair(&files.certificate, &files.key);
    }
    let Ok(signer) = Signer::from_secret(&files.secret()) else {
        return;
    };
    if let Ok(made) = pki::issue(&order("leaf", &["a.example"], true), Some(&signer)) {
        assert_eq!(
            told.key_error, None,
            "a CA signs with a key that is not its own"
        );
        let (certificate, key) = (made.certificate.as_bytes(), made.key.as_bytes());
        let told = pair(Some(made.ca.as_bytes()), certificate, key);
        assert_eq!((told.key_error, told.chain_error), (None, None));
        assert_pair(certificate, key);
    }
}

/// Files to begin with: CAs and leaves with each kind of key, both as PEM and as DER; and pairs that are none.
pub fn seeds() -> Vec<Vec<u8>> {
    let ca = authority("site ca");
    let leaf = signed(&ca, &["a.example", "10.0.0.1"]);
    let other = authority("other");
    let text = |of: &Credential, key: &Credential, ca: &Credential| {
        let files = [
            of.certificate.as_bytes(),
            key.key.as_bytes(),
            ca.ca.as_bytes(),
        ];
        files.join(MARK)
    };
    let mut seeds = vec![
        text(&ca, &ca, &ca),
        text(&leaf, &leaf, &ca),
        text(&leaf, &ca, &ca),
        text(&leaf, &leaf, &other),
        [text(&leaf, &leaf, &ca), ca.ca.into_bytes()].concat(),
    ];
    let kinds = [&PKCS_RSA_SHA256, &PKCS_ECDSA_P384_SHA384, &PKCS_ED25519];
    for kind in kinds {
        let key = KeyPair::generate_for(kind).expect("a key of each kind");
        let params = CertificateParams::new(["a.example".to_owned()]).expect("a name");
        let certificate = params.self_signed(&key).expect("a certificate");
        let files = [
            certificate.pem().into_bytes(),
            key.serialize_pem().into_bytes(),
        ];
        seeds.push(files.join(MARK));
    }
    let binary: Vec<Vec<u8>> = seeds
        .iter()
        .filter_map(|seed| Files::of(seed).der())
        .collect();
    // By itself, so that nearly every change is one of the certificate.
    seeds.extend(binary.iter().map(|seed| halves(seed).0.to_vec()));
    seeds.extend(binary);
    seeds
}

/// The certificates of a file and nothing else, as we write them.
pub(super) fn rewritten(name: &str, file: &[u8]) -> Option<Vec<u8>> {
    let found = certificates(name, file).ok()?;
    let text: String = found.iter().map(|der| pem::certificate(der)).collect();
    Some(text.into_bytes())
}

/// The key of a file and nothing else, as we write it.
pub(super) fn rewritten_key(file: &[u8]) -> Option<Vec<u8>> {
    let key = private_key(file).ok()?;
    Some(pem::private_key(&key).as_bytes().to_vec())
}

struct Files {
    certificate: Vec<u8>,
    key: Vec<u8>,
    ca: Vec<u8>,
}

impl Files {
    fn of(bytes: &[u8]) -> Self {
        let (form, bytes) = match bytes {
            [form, rest @ ..] if DER.contains(form) => (Some(*form), rest),
            _ => (None, bytes),
        };
        let (certificate, rest) = halves(bytes);
        let (key, ca) = halves(rest);
        let Some(form) = form else {
            let [certificate, key, ca] = [certificate, key, ca].map(<[u8]>::to_vec);
            return Self {
                certificate,
                key,
                ca,
            };
        };
        let key: PrivateKeyDer<'_> = match form {
            0 => PrivatePkcs8KeyDer::from(key).into(),
            1 => PrivateSec1KeyDer::from(key).into(),
            _ => PrivatePkcs1KeyDer::from(key).into(),
        };
        Self {
            certificate: pem::certificate(certificate).into_bytes(),
            key: pem::private_key(&key).as_bytes().to_vec(),
            ca: pem::certificate(ca).into_bytes(),
        }
    }

    fn secret(&self) -> Secret {
        let files = [
            (CERTIFICATE_FILE, &self.certificate),
            (KEY_FILE, &self.key),
            (CA_FILE, &self.ca),
        ];
        let data = files.map(|(name, file)| (name.to_owned(), ByteString(file.clone())));
        Secret {
            data: Some(data.into()),
            ..Secret::default()
        }
    }

    /// The same with the first certificate of each file, as DER.
    fn der(&self) -> Option<Vec<u8>> {
        let first = |file: &[u8]| {
            let found = certificates("", file).ok().unwrap_or_default();
            found.first().map(|der| der.to_vec()).unwrap_or_default()
        };
        let key = private_key(&self.key).ok()?;
        let form = match *key {
            PrivateKeyDer::Pkcs1(_) => 2,
            PrivateKeyDer::Sec1(_) => 1,
            _ => 0,
        };
        let files = [
            first(&self.certificate),
            key.secret_der().to_vec(),
            first(&self.ca),
        ];
        Some([vec![form], files.join(MARK)].concat())
    }
}

/// What is before the first mark, and what is behind it.
fn halves(bytes: &[u8]) -> (&[u8], &[u8]) {
    let mark = bytes.windows(MARK.len()).position(|window| window == MARK);
    let Some(mark) = mark else {
        return (bytes, &[]);
    };
    let (before, rest) = bytes.split_at(mark);
    (before, rest.get(MARK.len()..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_says_the_same_in_both_forms_and_nothing_without_its_key() {
        let is_pair = |seed: &Vec<u8>| {
            run(seed);
            let facts = secret_facts(&Files::of(seed).secret());
            facts.pair.is_some_and(|pair| pair.key_error.is_none())
        };
        let pairs: Vec<bool> = seeds().iter().map(is_pair).collect();
        let once = [true, true, false, true, true, true, true, true];
        assert_eq!(pairs, [once, [false; 8], once].concat());
    }
}
