//! Which versions of each credential does the router find on disk, complete and matching?
//!
//! A version's folder is written under another name, renamed when it is whole, and never changed
//! afterwards; so the router never reads half a rotation, and the old version is there for as long
//! as anything may still use it.

use crate::error::TakeCredential;
use crate::mount::Files;
use rustls::crypto::aws_lc_rs;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use spanwire_router::credentials::{self, Profile};
use spanwire_router::entity::SslProfile;
use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use tracing::warn;
use x509_parser::prelude::{FromDer, SubjectPublicKeyInfo, X509Certificate};
use zeroize::Zeroizing;

const CA: &str = "ca.crt";
const CRT: &str = "tls.crt";
const KEY: &str = "tls.key";

/// Names the last version that the router is known to have taken into use.
const CURRENT: &str = "current";

/// Begins the name of what is not whole yet.
const UNFINISHED: &str = ".new-";

/// The memory volume shared with the router.
pub(crate) struct Store {
    root: PathBuf,
}

impl Store {
    /// The store in this folder, with what an earlier adaptor left there.
    pub(crate) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// Checks a profile's files and makes sure that its version lies on disk.
    ///
    /// # Errors
    /// See [`TakeCredential`]; nothing of the version is on disk then.
    pub(crate) fn take(
        &self,
        name: &str,
        profile: &Profile,
        files: &Files,
    ) -> Result<(), TakeCredential> {
        profile.check()?;
        let contents = contents(profile, files)?;
        let folder = self.version_folder(name, &profile.version);
        if is_stored(&folder, &contents) {
            return Ok(());
        }
        check(&contents)?;
        self.store(&folder, &contents)
            .map_err(|error| TakeCredential::StoreFile {
                message: error.to_string(),
            })
    }

    /// The profile as the router is to have it, if that version lies on disk. Without ordinals.
    pub(crate) fn ssl_profile(&self, name: &str, version: &str) -> Option<SslProfile> {
        let folder = self.version_folder(name, version);
        if !folder.is_dir() {
            return None;
        }
        let path = |file| {
            let path = folder.join(file);
            path.is_file().then(|| path.to_string_lossy().into_owned())
        };
        Some(SslProfile {
            name: name.to_owned(),
            ca_cert_file: path(CA),
            cert_file: path(CRT),
            private_key_file: path(KEY),
            ..SslProfile::default()
        })
    }

    /// The version that a profile of the router points at, if it points into this store.
    pub(crate) fn version_of(&self, profile: &SslProfile) -> Option<String> {
        let files = [
            &profile.ca_cert_file,
            &profile.cert_file,
            &profile.private_key_file,
        ];
        let folder = Path::new(files.into_iter().flatten().next()?).parent()?;
        let is_ours = folder.parent() == Some(&self.profile_folder(&profile.name));
        is_ours.then(|| {
            folder
                .file_name()
                .map(|name| name.to_string_lossy().into_owned())
        })?
    }

    /// The version that the router is known to have taken into use last, if it is still on disk.
    pub(crate) fn current(&self, name: &str) -> Option<String> {
        let version = fs::read_to_string(self.profile_folder(name).join(CURRENT)).ok()?;
        let is_plain = !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_hexdigit());
        (is_plain && self.version_folder(name, &version).is_dir()).then_some(version)
    }

    /// Remembers that the router has taken this version into use.
    pub(crate) fn set_current(&self, name: &str, version: &str) -> io::Result<()> {
        if self.current(name).as_deref() == Some(version) {
            return Ok(());
        }
        let folder = self.profile_folder(name);
        let unfinished = folder.join(format!("{UNFINISHED}{CURRENT}"));
        fs::write(&unfinished, version)?;
        fs::rename(unfinished, folder.join(CURRENT))
    }

    /// Removes every version that is not one of these (profile, version).
    pub(crate) fn keep(&self, kept: &BTreeSet<(String, String)>) {
        let profiles: BTreeSet<PathBuf> = kept
            .iter()
            .map(|(name, _)| self.profile_folder(name))
            .collect();
        let versions: BTreeSet<PathBuf> = kept
            .iter()
            .map(|(name, version)| self.version_folder(name, version))
            .collect();
        for profile in folders(&self.root) {
            if profiles.contains(&profile) {
                folders(&profile)
                    .filter(|version| !versions.contains(version))
                    .for_each(|version| remove(&version));
            } else {
                remove(&profile);
            }
        }
    }

    fn store(&self, folder: &Path, contents: &[(&str, &[u8])]) -> io::Result<()> {
        let Some((parent, version)) = folder.parent().zip(folder.file_name()) else {
            return Err(io::Error::other("no folder to store it in"));
        };
        let unfinished = parent.join(format!("{UNFINISHED}{}", version.to_string_lossy()));
        for leftover in [&unfinished, folder] {
            remove_if_there(leftover)?;
        }
        let mut private = DirBuilder::new();
        private.recursive(true).mode(0o700);
        private.create(&self.root)?;
        private.create(&unfinished)?;
        for (file, content) in contents {
            let mut output = OpenOptions::new();
            output.write(true).create_new(true).mode(0o400);
            output.open(unfinished.join(file))?.write_all(content)?;
        }
        fs::rename(unfinished, folder)
    }

    /// A profile's name is a user's text: one that is no plain file name is replaced by its digest.
    /// `~` is in no plain name, so no two profiles share a folder.
    fn profile_folder(&self, name: &str) -> PathBuf {
        let is_plain =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if !name.is_empty()
            && name.len() <= 253
            && !name.starts_with('.')
            && name.bytes().all(is_plain)
        {
            return self.root.join(name);
        }
        self.root
            .join(format!("~{}", credentials::digest(name.as_bytes())))
    }

    fn version_folder(&self, name: &str, version: &str) -> PathBuf {
        self.profile_folder(name).join(version)
    }
}

/// The files of a profile as they lie beside `profiles.json`, each with the digest that is written
/// there.
fn contents<'a>(
    profile: &Profile,
    files: &'a Files,
) -> Result<Vec<(&'static str, &'a [u8])>, TakeCredential> {
    let mut contents: Vec<(&'static str, &[u8])> = Vec::new();
    for (file, described) in [(CA, &profile.ca), (CRT, &profile.crt), (KEY, &profile.key)] {
        let Some(described) = described else { continue };
        let content = match files.get(&described.key) {
            Some(Ok(content)) => content,
            Some(Err(message)) => {
                return Err(TakeCredential::ReadFile {
                    file,
                    message: message.clone(),
                });
            }
            None => {
                let message = format!("{} is not there", described.key);
                return Err(TakeCredential::ReadFile { file, message });
            }
        };
        if credentials::digest(content) != described.sha256 {
            return Err(TakeCredential::MatchDigest { file });
        }
        contents.push((file, content));
    }
    Ok(contents)
}

/// Whether what a router would refuse at once, or never tell apart, is right (`facts/router.md`
/// §1): each file holds what it should, and the key is the certificate's.
fn check(contents: &[(&'static str, &[u8])]) -> Result<(), TakeCredential> {
    let content = |wanted| {
        contents
            .iter()
            .find(|(file, _)| *file == wanted)
            .map(|(_, bytes)| *bytes)
    };
    if let Some(ca) = content(CA) {
        certificates(CA, ca)?;
    }
    match (content(CRT), content(KEY)) {
        (Some(crt), Some(key)) => {
            let leaf = certificates(CRT, crt)?;
            check_pair(&leaf, key)
        }
        (Some(_), None) => Err(TakeCredential::FindPair {
            present: CRT,
            absent: KEY,
        }),
        (None, Some(_)) => Err(TakeCredential::FindPair {
            present: KEY,
            absent: CRT,
        }),
        (None, None) if contents.is_empty() => Err(TakeCredential::FindFile),
        (None, None) => Ok(()),
    }
}

/// Reads all certificates of a file and returns the first.
fn certificates(file: &'static str, pem: &[u8]) -> Result<CertificateDer<'static>, TakeCredential> {
    let mut first = None;
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let unreadable = |message: String| TakeCredential::ReadCertificate { file, message };
        let certificate = certificate.map_err(|error| unreadable(error.to_string()))?;
        X509Certificate::from_der(&certificate).map_err(|error| unreadable(error.to_string()))?;
        first.get_or_insert(certificate);
    }
    first.ok_or(TakeCredential::FindCertificate { file })
}

fn check_pair(leaf: &CertificateDer<'_>, key: &[u8]) -> Result<(), TakeCredential> {
    let unreadable = |message: String| TakeCredential::ReadKey { message };
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| unreadable(error.to_string()))?;
    let key =
        aws_lc_rs::sign::any_supported_type(&key).map_err(|error| unreadable(error.to_string()))?;
    let spki = key
        .public_key()
        .ok_or_else(|| unreadable("it has no public half".to_owned()))?;
    let of_leaf = X509Certificate::from_der(leaf);
    let of_key = SubjectPublicKeyInfo::from_der(&spki);
    match (of_leaf, of_key) {
        (Ok((_, leaf)), Ok((_, key)))
            if leaf.public_key().subject_public_key == key.subject_public_key =>
        {
            Ok(())
        }
        _ => Err(TakeCredential::MatchKey),
    }
}

/// Whether a folder holds exactly these files. An earlier adaptor may have stored them.
fn is_stored(folder: &Path, contents: &[(&str, &[u8])]) -> bool {
    let holds = |(file, content): &(&str, &[u8])| {
        fs::read(folder.join(file))
            .map(Zeroizing::new)
            .is_ok_and(|stored| stored[..] == **content)
    };
    let count = fs::read_dir(folder).map_or(0, Iterator::count);
    !contents.is_empty() && count == contents.len() && contents.iter().all(holds)
}

fn folders(parent: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
}

fn remove(folder: &Path) {
    if let Err(error) = remove_if_there(folder) {
        warn!(folder = %folder.display(), %error, "Could not remove an old credential");
    }
}

fn remove_if_there(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::ByteString;
    use rcgen::{
        CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519,
        PKCS_RSA_SHA256, SignatureAlgorithm,
    };
    use spanwire_router::credentials::File;
    use std::os::unix::fs::PermissionsExt;
    use tempfile::TempDir;
    use x509_parser::asn1_rs::{Any, OctetString, Sequence};

    /// A certificate and its key, self-signed.
    fn pair(algorithm: &'static SignatureAlgorithm) -> (String, KeyPair) {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let certificate = CertificateParams::default().self_signed(&key).unwrap();
        (certificate.pem(), key)
    }

    fn profile(contents: &[(&str, &str)]) -> (Profile, Files) {
        let file = |wanted: &str| {
            let (name, content) = contents.iter().find(|(name, _)| *name == wanted)?;
            Some(File {
                key: (*name).to_owned(),
                sha256: credentials::digest(content.as_bytes()),
            })
        };
        let files = contents.iter().map(|(name, content)| {
            (
                (*name).to_owned(),
                Ok(Zeroizing::new(content.as_bytes().to_vec())),
            )
        });
        (
            Profile::new(file(CA), file(CRT), file(KEY)),
            files.collect(),
        )
    }

    fn take(contents: &[(&str, &str)]) -> Result<(), TakeCredential> {
        let home = TempDir::new().unwrap();
        let (profile, files) = profile(contents);
        Store::new(home.path().to_owned()).take("p", &profile, &files)
    }

    /// The key inside PKCS#8, in the older form of its own kind.
    fn older_pem(key: &KeyPair, label: &str) -> String {
        let pkcs8 = key.serialize_der();
        let (_, sequence) = Sequence::from_der(&pkcs8).unwrap();
        let (rest, _version) = Any::from_der(&sequence.content).unwrap();
        let (rest, _algorithm) = Any::from_der(rest).unwrap();
        let (_, inner) = OctetString::from_der(rest).unwrap();
        // Kubernetes writes bytes as base64.
        let body = serde_json::to_value(ByteString(inner.as_ref().to_vec())).unwrap();
        format!(
            "-----BEGIN {label}-----\n{}\n-----END {label}-----\n",
            body.as_str().unwrap()
        )
    }

    #[test]
    fn keys_of_every_kind_and_form_are_matched_with_their_certificate() {
        let kinds = [
            (&PKCS_ECDSA_P256_SHA256, Some("EC PRIVATE KEY")),
            (&PKCS_ECDSA_P384_SHA384, Some("EC PRIVATE KEY")),
            (&PKCS_ED25519, None),
            (&PKCS_RSA_SHA256, Some("RSA PRIVATE KEY")),
        ];
        for (algorithm, older) in kinds {
            let (crt, key) = pair(algorithm);
            let (other, _) = pair(algorithm);
            let forms = [
                Some(key.serialize_pem()),
                older.map(|label| older_pem(&key, label)),
            ];
            for form in forms.iter().flatten() {
                assert_eq!(
                    take(&[(CA, &other), (CRT, &crt), (KEY, form)]),
                    Ok(()),
                    "{algorithm:?}"
                );
                assert_eq!(
                    take(&[(CRT, &other), (KEY, form)]),
                    Err(TakeCredential::MatchKey)
                );
            }
        }
    }

    #[test]
    fn a_chain_is_taken_by_its_leaf() {
        let (leaf, key) = pair(&PKCS_ECDSA_P256_SHA256);
        let (next, _) = pair(&PKCS_ECDSA_P256_SHA256);
        let key = key.serialize_pem();
        assert_eq!(
            take(&[(CRT, &format!("{leaf}{next}")), (KEY, &key)]),
            Ok(())
        );
        assert_eq!(
            take(&[(CRT, &format!("{next}{leaf}")), (KEY, &key)]),
            Err(TakeCredential::MatchKey)
        );
    }

    #[test]
    fn what_a_router_would_refuse_is_not_taken() {
        let (crt, key) = pair(&PKCS_ECDSA_P256_SHA256);
        let key = key.serialize_pem();
        assert_eq!(take(&[]), Err(TakeCredential::FindFile));
        assert_eq!(
            take(&[(CA, "")]),
            Err(TakeCredential::FindCertificate { file: CA })
        );
        assert_eq!(
            take(&[(CA, &key)]),
            Err(TakeCredential::FindCertificate { file: CA })
        );
        let absent = TakeCredential::FindPair {
            present: CRT,
            absent: KEY,
        };
        assert_eq!(take(&[(CRT, &crt)]), Err(absent));
        let absent = TakeCredential::FindPair {
            present: KEY,
            absent: CRT,
        };
        assert_eq!(take(&[(KEY, &key)]), Err(absent));
        assert!(matches!(
            take(&[(CRT, &crt), (KEY, &crt)]),
            Err(TakeCredential::ReadKey { .. })
        ));
        let truncated = crt.replacen('\n', "\nAAAA", 1);
        assert!(matches!(
            take(&[(CA, &truncated)]),
            Err(TakeCredential::ReadCertificate { file: CA, .. })
        ));
    }

    #[test]
    fn a_version_is_whole_private_and_left_alone_once_it_is_there() {
        let home = TempDir::new().unwrap();
        let store = Store::new(home.path().to_owned());
        let (crt, key) = pair(&PKCS_ECDSA_P256_SHA256);
        let (described, files) = profile(&[(CRT, &crt), (KEY, &key.serialize_pem())]);
        // What an adaptor left behind that was killed half way.
        let folder = home.path().join("p").join(&described.version);
        let leftover = home
            .path()
            .join("p")
            .join(format!("{UNFINISHED}{}", described.version));
        fs::create_dir_all(&leftover).unwrap();
        fs::write(leftover.join(CRT), "half").unwrap();

        store.take("p", &described, &files).unwrap();
        assert!(!leftover.exists());
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&folder.join(KEY))), (0o700, 0o400));
        let written = fs::metadata(folder.join(KEY)).unwrap().modified().unwrap();
        store.take("p", &described, &files).unwrap();
        assert_eq!(
            fs::metadata(folder.join(KEY)).unwrap().modified().unwrap(),
            written
        );

        let ssl_profile = store.ssl_profile("p", &described.version).unwrap();
        assert_eq!(ssl_profile.ca_cert_file, None);
        assert_eq!(
            ssl_profile.cert_file,
            Some(folder.join(CRT).to_string_lossy().into_owned())
        );
        assert_eq!(
            store.version_of(&ssl_profile),
            Some(described.version.clone())
        );
        assert_eq!(store.ssl_profile("p", "0123456789abcdef"), None);

        // What was tampered with is written anew.
        fs::remove_file(folder.join(KEY)).unwrap();
        store.take("p", &described, &files).unwrap();
        assert_eq!(
            fs::read_to_string(folder.join(KEY)).unwrap(),
            key.serialize_pem()
        );
    }

    #[test]
    fn the_current_version_is_remembered_while_it_is_on_disk() {
        let home = TempDir::new().unwrap();
        let store = Store::new(home.path().to_owned());
        assert_eq!(store.current("p"), None);
        let (crt, _) = pair(&PKCS_ECDSA_P256_SHA256);
        let (described, files) = profile(&[(CA, &crt)]);
        store.take("p", &described, &files).unwrap();
        store.set_current("p", &described.version).unwrap();
        assert_eq!(
            Store::new(home.path().to_owned()).current("p"),
            Some(described.version)
        );
        for junk in ["", "../..", "0123456789abcdef"] {
            fs::write(home.path().join("p").join(CURRENT), junk).unwrap();
            assert_eq!(store.current("p"), None, "{junk}");
        }
    }

    #[test]
    fn only_what_is_kept_stays() {
        let home = TempDir::new().unwrap();
        let store = Store::new(home.path().to_owned());
        let (a, _) = pair(&PKCS_ECDSA_P256_SHA256);
        let (b, _) = pair(&PKCS_ECDSA_P256_SHA256);
        let versions = [&a, &b].map(|ca| {
            let (described, files) = profile(&[(CA, ca)]);
            store.take("p", &described, &files).unwrap();
            store.take("q/..", &described, &files).unwrap();
            described.version
        });
        store.keep(&BTreeSet::from([("p".to_owned(), versions[1].clone())]));
        assert_eq!(
            folders(home.path()).collect::<Vec<_>>(),
            [home.path().join("p")]
        );
        let kept: Vec<_> = folders(&home.path().join("p")).collect();
        assert_eq!(kept, [home.path().join("p").join(&versions[1])]);
    }

    #[test]
    fn no_name_leaves_the_store_and_no_two_share_a_folder() {
        let store = Store::new(PathBuf::from("/certs"));
        let names = [
            "a",
            "..",
            ".",
            "",
            "a/b",
            "../a",
            "~a",
            "a b",
            "A",
            ".a",
            &"x".repeat(300),
        ];
        let folders: BTreeSet<PathBuf> = names
            .iter()
            .map(|name| store.profile_folder(name))
            .collect();
        assert_eq!(folders.len(), names.len());
        assert!(
            folders
                .iter()
                .all(|folder| folder.parent() == Some(Path::new("/certs")))
        );
    }
}
