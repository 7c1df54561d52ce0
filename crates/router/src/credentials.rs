//! Which credential files does a router use, and which version of them?
//!
//! One Secret holds the files of all profiles, flat, under short keys, and beside them
//! `profiles.json`: for each profile its files, their digests and the version that these make
//! (`design.md` §3).

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use thiserror::Error;

/// The key of the list of profiles, in the Secret that holds their files.
pub const PROFILES_FILE: &str = "profiles.json";

/// The largest list that is read, in bytes: what a Secret can hold.
pub const MAX_PROFILES: usize = 1024 * 1024;

/// Hex digits of a version, a file key and a revision: 64 bits are plenty against accident, and a
/// version is only believed together with the full digests of its files.
const SHORT: usize = 16;

/// The content of `profiles.json`: profile name → its files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Profiles(pub BTreeMap<String, Profile>);

/// The files of one profile. An absent one does not exist: a profile that only verifies has no
/// `crt` and no `key`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    /// What [`version`] says of the files' digests.
    pub version: String,
    /// The trusted CAs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<File>,
    /// The certificate chain, leaf first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crt: Option<File>,
    /// The leaf's private key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<File>,
}

/// One file beside `profiles.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// Its key in the Secret, which is its name in the mounted folder.
    pub key: String,
    /// Lower-case hex of the SHA-256 of its content.
    pub sha256: String,
}

/// Why a list of profiles was refused.
#[derive(Debug, Error)]
pub enum ParseProfiles {
    /// Over [`MAX_PROFILES`].
    #[error("the list of profiles has {size} bytes, more than {MAX_PROFILES}")]
    LimitSize {
        /// In bytes.
        size: usize,
    },
    /// No JSON of the right shape.
    #[error("the list of profiles cannot be read: {0}")]
    ReadJson(#[from] serde_json::Error),
}

/// Why one profile of a list is not to be believed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CheckProfile {
    /// A key that is no plain file name.
    #[error("the key {key:?} is no plain file name")]
    NameFile {
        /// As written.
        key: String,
    },
    /// The version does not follow from the digests.
    #[error("the version {written:?} is not that of the files, {computed}")]
    MatchVersion {
        /// As written.
        written: String,
        /// As it should be.
        computed: String,
    },
}

impl Profiles {
    /// Reads the content of `profiles.json`.
    ///
    /// # Errors
    /// It is too large or has the wrong shape. Whether a single profile is sound is told by
    /// [`Profile::check`], so that one bad profile costs no other.
    pub fn parse(json: &[u8]) -> Result<Self, ParseProfiles> {
        if json.len() > MAX_PROFILES {
            return Err(ParseProfiles::LimitSize { size: json.len() });
        }
        Ok(serde_json::from_slice(json)?)
    }

    /// Writes it: compact, profiles by name.
    pub fn to_json(&self) -> String {
        // A map of text to structs of text cannot fail to be written.
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl Profile {
    /// A profile of these files, with its version.
    pub fn new(ca: Option<File>, crt: Option<File>, key: Option<File>) -> Self {
        let digest = |file: &Option<File>| file.as_ref().map(|file| file.sha256.clone());
        let version = version(
            digest(&ca).as_deref(),
            digest(&crt).as_deref(),
            digest(&key).as_deref(),
        );
        Self {
            version,
            ca,
            crt,
            key,
        }
    }

    /// Whether the keys are plain file names and the version is that of the digests.
    ///
    /// # Errors
    /// See [`CheckProfile`].
    pub fn check(&self) -> Result<(), CheckProfile> {
        for file in [&self.ca, &self.crt, &self.key].into_iter().flatten() {
            if !is_plain(&file.key) {
                return Err(CheckProfile::NameFile {
                    key: file.key.clone(),
                });
            }
        }
        let computed = Self::new(self.ca.clone(), self.crt.clone(), self.key.clone()).version;
        if computed == self.version {
            return Ok(());
        }
        Err(CheckProfile::MatchVersion {
            written: self.version.clone(),
            computed,
        })
    }
}

/// What a file of a profile is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Suffix {
    /// The trusted CAs.
    Ca,
    /// The certificate chain.
    Crt,
    /// The private key.
    Key,
}

impl Suffix {
    /// As it stands after the dot.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ca => "ca",
            Self::Crt => "crt",
            Self::Key => "key",
        }
    }
}

/// Lower-case hex of the SHA-256 of a file's content.
pub fn digest(content: &[u8]) -> String {
    hex(Sha256::digest(content).as_ref(), usize::MAX)
}

/// The version of a profile, from its files' digests as [`digest`] writes them: the first 16 hex
/// digits of the SHA-256 over three lines, ca, crt, key, each a digest and a line feed. The line of
/// an absent file is empty.
pub fn version(ca: Option<&str>, crt: Option<&str>, key: Option<&str>) -> String {
    let mut hash = Sha256::new();
    for digest in [ca, crt, key] {
        hash.update(digest.unwrap_or_default());
        hash.update("\n");
    }
    hex(hash.finalize().as_ref(), SHORT)
}

/// The key of a profile's file in the credentials Secret: 16 hex digits of the SHA-256 of the
/// profile's name, a dot and the suffix. Short, since etcd stores names twice (`facts/order.md`
/// C11).
pub fn file_key(profile: &str, suffix: Suffix) -> String {
    format!(
        "{}.{}",
        hex(Sha256::digest(profile).as_ref(), SHORT),
        suffix.as_str()
    )
}

/// The revision of a configuration with its credentials, as written: the first 16 hex digits of the
/// SHA-256 over both, each after its length as 8 bytes, the highest first.
pub fn revision(profiles_json: &[u8], skrouterd_json: &[u8]) -> String {
    let mut hash = Sha256::new();
    for part in [profiles_json, skrouterd_json] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hex(hash.finalize().as_ref(), SHORT)
}

fn hex(bytes: &[u8], digits: usize) -> String {
    let mut text = bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    });
    text.truncate(digits);
    text
}

fn is_plain(key: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !key.is_empty()
        && key.len() <= 253
        && !key.starts_with("..")
        && key != "."
        && key.chars().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, content: &str) -> File {
        File {
            key: file_key(name, Suffix::Ca),
            sha256: digest(content.as_bytes()),
        }
    }

    #[test]
    fn digests_are_those_of_everybody() {
        assert_eq!(
            digest(b""),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
    }

    #[test]
    fn the_version_follows_the_content_of_each_file_and_its_place() {
        let (a, b) = (digest(b"a"), digest(b"b"));
        let versions = [
            version(Some(&a), Some(&b), None),
            version(Some(&b), Some(&a), None),
            version(Some(&a), None, Some(&b)),
            version(None, Some(&a), Some(&b)),
            version(Some(&a), None, None),
            version(None, None, None),
        ];
        let mut distinct = versions.to_vec();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), versions.len());
        assert!(versions.iter().all(|version| version.len() == 16));
        assert_eq!(versions[0], "1c426bade5902af4");
    }

    #[test]
    fn keys_are_short_and_differ_by_profile_and_suffix() {
        assert_eq!(
            file_key("west-profile", Suffix::Crt),
            "f2f6de51e36354ca.crt"
        );
        assert_ne!(
            file_key("west-profile", Suffix::Key),
            file_key("east-profile", Suffix::Key)
        );
        assert_eq!(file_key("", Suffix::Ca).len(), 19);
    }

    #[test]
    fn the_revision_tells_where_one_document_ends() {
        assert_ne!(revision(b"ab", b"c"), revision(b"a", b"bc"));
        assert_eq!(revision(b"", b"").len(), 16);
    }

    #[test]
    fn profiles_are_written_and_read_the_same() {
        let profile = Profile::new(Some(file("a", "x")), None, None);
        let profiles = Profiles(BTreeMap::from([("a".to_owned(), profile.clone())]));
        let json = profiles.to_json();
        assert_eq!(
            json,
            format!(
                r#"{{"a":{{"version":"{}","ca":{{"key":"{}","sha256":"{}"}}}}}}"#,
                profile.version,
                file_key("a", Suffix::Ca),
                digest(b"x")
            )
        );
        assert_eq!(Profiles::parse(json.as_bytes()).unwrap(), profiles);
    }

    #[test]
    fn a_profile_that_contradicts_itself_is_told() {
        let good = Profile::new(Some(file("a", "x")), None, None);
        assert_eq!(good.check(), Ok(()));
        let other = Profile {
            version: "0123456789abcdef".to_owned(),
            ..good.clone()
        };
        assert!(matches!(
            other.check(),
            Err(CheckProfile::MatchVersion { .. })
        ));
        for key in ["../x", "/etc/passwd", "", "..data", "a/b", "."] {
            let file = File {
                key: key.to_owned(),
                ..file("a", "x")
            };
            let profile = Profile::new(Some(file), None, None);
            assert_eq!(
                profile.check(),
                Err(CheckProfile::NameFile {
                    key: key.to_owned()
                })
            );
        }
    }

    #[test]
    fn a_list_that_is_too_large_or_broken_is_refused() {
        let large = vec![b' '; MAX_PROFILES + 1];
        assert!(matches!(
            Profiles::parse(&large),
            Err(ParseProfiles::LimitSize { .. })
        ));
        assert!(matches!(
            Profiles::parse(b"[]"),
            Err(ParseProfiles::ReadJson(_))
        ));
    }
}
