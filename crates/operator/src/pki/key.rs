//! How is a private key made?

use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256, RsaKeySize};
use zeroize::Zeroizing;

/// A new key: RSA with 2048 bits, or P-256.
pub(super) fn generate(rsa: bool) -> Result<Zeroizing<KeyPair>, rcgen::Error> {
    let key = if rsa {
        KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048)
    } else {
        KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)
    };
    key.map(Zeroizing::new)
}
