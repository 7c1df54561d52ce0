//! What does the kubelet do to the mounted folder?

use crate::pki::Credential;
use serde_json::{Value, json};
use spanwire_router::credentials::{File, Profile, Profiles, Suffix, digest, file_key, revision};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// A projected volume.
pub(crate) struct Folder {
    path: PathBuf,
    swaps: u32,
    /// What it holds after the next swap.
    pub(crate) files: BTreeMap<String, Vec<u8>>,
    profiles: Profiles,
    document: Vec<Value>,
}

impl Folder {
    pub(crate) fn new(path: PathBuf) -> Self {
        fs::create_dir_all(&path).unwrap();
        Self {
            path,
            swaps: 0,
            files: BTreeMap::new(),
            profiles: Profiles::default(),
            document: Vec::new(),
        }
    }

    /// Adds a credential to the Secret.
    pub(crate) fn credential(&mut self, profile: &str, credential: &Credential) -> &mut Self {
        let Credential { ca, crt, key } = credential;
        let ca = self.file(profile, Suffix::Ca, ca);
        let crt = self.file(profile, Suffix::Crt, crt);
        let key = self.file(profile, Suffix::Key, key);
        self.profiles.0.insert(
            profile.to_owned(),
            Profile::new(Some(ca), Some(crt), Some(key)),
        );
        self
    }

    /// Adds a credential that is a CA and nothing else.
    pub(crate) fn authority(&mut self, profile: &str, ca: &str) -> &mut Self {
        let ca = self.file(profile, Suffix::Ca, ca);
        self.profiles
            .0
            .insert(profile.to_owned(), Profile::new(Some(ca), None, None));
        self
    }

    fn file(&mut self, profile: &str, suffix: Suffix, content: &str) -> File {
        let key = file_key(profile, suffix);
        self.files.insert(key.clone(), content.into());
        File {
            key,
            sha256: digest(content.as_bytes()),
        }
    }

    /// Takes a credential out of the Secret.
    pub(crate) fn without_credential(&mut self, profile: &str) -> &mut Self {
        self.profiles.0.remove(profile);
        self
    }

    /// The version of a credential.
    pub(crate) fn version(&self, profile: &str) -> String {
        self.profiles.0[profile].version.clone()
    }

    /// Adds an entity to the configuration, in place of one of the same name.
    pub(crate) fn entity(&mut self, entity_type: &str, attributes: &Value) -> &mut Self {
        let name = attributes["name"].clone();
        self.document.retain(|entry| entry[1]["name"] != name);
        self.document.push(json!([entity_type, attributes]));
        self
    }

    /// Takes an entity out of the configuration.
    pub(crate) fn without_entity(&mut self, name: &str) -> &mut Self {
        self.document.retain(|entry| entry[1]["name"] != name);
        self
    }

    /// Writes both documents and swaps the link, as the kubelet does; the revision.
    pub(crate) fn swap(&mut self) -> String {
        let profiles = self.profiles.to_json();
        let config = Value::from(self.document.clone()).to_string();
        self.swap_documents(profiles.as_bytes(), config.as_bytes())
    }

    /// The same with these documents, whatever they hold.
    pub(crate) fn swap_documents(&mut self, profiles: &[u8], config: &[u8]) -> String {
        self.files
            .insert("profiles.json".to_owned(), profiles.to_vec());
        self.files
            .insert("skrouterd.json".to_owned(), config.to_vec());
        self.swaps += 1;
        let target = format!("..{}", self.swaps);
        fs::create_dir(self.path.join(&target)).unwrap();
        for (name, content) in &self.files {
            fs::write(self.path.join(&target).join(name), content).unwrap();
        }
        let last = fs::read_link(self.path.join("..data")).ok();
        symlink(&target, self.path.join("..data_tmp")).unwrap();
        fs::rename(self.path.join("..data_tmp"), self.path.join("..data")).unwrap();
        for name in self.files.keys() {
            let link = self.path.join(name);
            if !link.is_symlink() {
                symlink(Path::new("..data").join(name), link).unwrap();
            }
        }
        if let Some(last) = last {
            fs::remove_dir_all(self.path.join(last)).unwrap();
        }
        revision(profiles, config)
    }

    /// Removes the link, which no kubelet should ever do.
    pub(crate) fn unlink(&self) {
        fs::remove_file(self.path.join("..data")).unwrap();
    }
}
