//! Which versions of each credential does the router find on disk, complete and matching?
//!
//! A version's folder is written under another name, renamed when it is whole, and never changed afterwards; so the router
//! never reads half a rotation, and the old version is there for as long as anything may still use it.

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

    /// A profile's name is a user's text: one that is no plain file name is replaced by its digest. `~` is in no plain
    /// name, so no two profiles share a folder.
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

/// The files of a profile as they lie beside `profiles.json`, each with the digest that is written there.
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

/// Whether what a router would refuse at once, or never tell apart, is right (`facts/router.md` §1): each file holds what
/// it should, and the key is the certificate's.
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
