//! What is in the mounted folder now, and when does that change?
//!
//! The kubelet writes a new folder and swaps the link `..data` to it, so everything behind one
//! target of that link is one snapshot. (Of one source: the Secret and the ConfigMap in it come
//! from caches of their own and may not belong together, `facts/order.md` (j). Nothing here depends
//! on that.)

use crate::error::ReadMount;
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use spanwire_router::config::{CONFIG_FILE, Document, ParseDocument};
use spanwire_router::credentials::{PROFILES_FILE, ParseProfiles, Profiles, revision};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tracing::warn;
use zeroize::Zeroizing;

/// The link that the kubelet swaps.
const DATA: &str = "..data";

/// The largest file that is read, in bytes: a Secret or ConfigMap holds no larger one.
const MAX_FILE: u64 = 1024 * 1024;

/// How often the link is looked at although no event came. Nothing is read unless it moved.
const POLL: Duration = Duration::from_secs(10);

/// The same when events cannot be had: a node may run out of inotify instances.
const POLL_BLIND: Duration = Duration::from_secs(1);

/// How often reading starts anew because the folder was replaced meanwhile.
const TRIES: usize = 5;

/// One state of the folder.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// Of the two documents as mounted.
    pub(crate) revision: String,
    /// The wanted configuration.
    pub(crate) document: Result<Document, ParseDocument>,
    /// What the credential files are.
    pub(crate) profiles: Result<Profiles, ParseProfiles>,
    /// The credential files by key, or why one could not be read.
    pub(crate) files: Files,
}

/// File contents by key.
pub(crate) type Files = BTreeMap<String, Result<Zeroizing<Vec<u8>>, String>>;

/// The mounted folder.
pub(crate) struct Mount {
    folder: PathBuf,
    bell: (watch::Sender<()>, watch::Receiver<()>),
    watcher: Option<RecommendedWatcher>,
    /// The target of the link when it was read last.
    seen: Option<PathBuf>,
    /// When the link is looked at next.
    poll: Instant,
}

impl Mount {
    /// Begins to watch the folder, which need not exist yet.
    pub(crate) fn new(folder: PathBuf) -> Self {
        let mut mount = Self {
            folder,
            bell: watch::channel(()),
            watcher: None,
            seen: None,
            poll: Instant::now(),
        };
        if let Err(error) = mount.watch() {
            warn!(folder = %mount.folder.display(), %error, "Watched no folder; polling it");
        }
        mount
    }

    /// Returns when the folder may have changed since it was read. May be dropped and called again.
    pub(crate) async fn changed(&mut self) {
        loop {
            tokio::select! {
                _ = self.bell.1.changed() => return,
                () = sleep_until(self.poll) => {}
            }
            let is_blind = self.watcher.is_none();
            self.poll = Instant::now() + if is_blind { POLL_BLIND } else { POLL };
            if is_blind && self.watch().is_ok() {
                return;
            }
            if self.target().ok() != self.seen {
                return;
            }
        }
    }

    /// Whether the folder may have changed since it was read.
    pub(crate) fn has_changed(&self) -> bool {
        self.bell.1.has_changed().unwrap_or(false)
    }

    /// Reads the folder.
    ///
    /// # Errors
    /// One of the two documents cannot be had. A credential file that cannot be had is told in the
    /// snapshot.
    pub(crate) fn read(&mut self) -> Result<Snapshot, ReadMount> {
        self.bell.1.mark_unchanged();
        for _ in 0..TRIES {
            let target = self.target();
            self.seen = target.as_ref().ok().cloned();
            let target = target.map_err(|source| ReadMount::FollowLink {
                path: self.folder.clone(),
                source,
            })?;
            let snapshot = read_folder(&target);
            // The kubelet removes the old folder as soon as it has swapped the link.
            if self.target().ok().as_ref() == Some(&target) {
                return snapshot;
            }
        }
        Err(ReadMount::ReadWhole)
    }

    fn watch(&mut self) -> notify::Result<()> {
        let bell = self.bell.0.clone();
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            // Reading is an event too, and must not ring for itself.
            if !matches!(
                event,
                Ok(Event {
                    kind: EventKind::Access(_),
                    ..
                })
            ) {
                bell.send_replace(());
            }
        })?;
        watcher.watch(&self.folder, RecursiveMode::NonRecursive)?;
        self.watcher = Some(watcher);
        Ok(())
    }

    /// Where the files are now. A folder that no kubelet made has no link and is its own target.
    fn target(&self) -> io::Result<PathBuf> {
        let link = self.folder.join(DATA);
        match link.canonicalize() {
            Err(error) if error.kind() == io::ErrorKind::NotFound && !link.is_symlink() => {
                self.folder.canonicalize()
            }
            target => target,
        }
    }
}

fn read_folder(folder: &Path) -> Result<Snapshot, ReadMount> {
    let profiles_json = read_document(folder, PROFILES_FILE)?;
    let config_json = read_document(folder, CONFIG_FILE)?;
    let profiles = Profiles::parse(&profiles_json);
    let mut files = Files::new();
    for profile in profiles.iter().flat_map(|profiles| profiles.0.values()) {
        // Only plain names are followed; others are refused when the profile is checked.
        if profile.check().is_err() {
            continue;
        }
        for file in [&profile.ca, &profile.crt, &profile.key]
            .into_iter()
            .flatten()
        {
            files.entry(file.key.clone()).or_insert_with(|| {
                read_file(&folder.join(&file.key)).map_err(|error| error.to_string())
            });
        }
    }
    Ok(Snapshot {
        revision: revision(&profiles_json, &config_json),
        document: Document::parse(&config_json),
        profiles,
        files,
    })
}

fn read_document(folder: &Path, name: &str) -> Result<Zeroizing<Vec<u8>>, ReadMount> {
    read_file(&folder.join(name)).map_err(|source| ReadMount::ReadFile {
        name: name.to_owned(),
        source,
    })
}

fn read_file(path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
    let file = File::open(path)?;
    let size = file.metadata()?.len().min(MAX_FILE);
    // Sized once: growing would leave copies of a key behind in memory.
    let mut content = Zeroizing::new(Vec::with_capacity(usize::try_from(size).unwrap_or(0) + 1));
    file.take(MAX_FILE + 1).read_to_end(&mut content)?;
    if content.len() as u64 > MAX_FILE {
        return Err(io::Error::other(format!("more than {MAX_FILE} bytes")));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use spanwire_router::credentials::{File as Described, Profile, digest};
    use std::fs;
    use std::os::unix::fs::symlink;
    use tempfile::TempDir;
    use tokio::time::timeout;

    /// Writes one state of a folder and swaps the link to it.
    fn swap(folder: &Path, target: &str, files: &[(&str, &str)]) {
        fs::create_dir(folder.join(target)).unwrap();
        for (name, content) in files {
            fs::write(folder.join(target).join(name), content).unwrap();
        }
        symlink(target, folder.join("..data_tmp")).unwrap();
        fs::rename(folder.join("..data_tmp"), folder.join(DATA)).unwrap();
    }

    #[tokio::test]
    async fn a_swap_is_seen_at_once_and_reading_is_not_taken_for_one() {
        let home = TempDir::new().unwrap();
        let mut mount = Mount::new(home.path().to_owned());
        assert!(
            matches!(mount.read(), Err(ReadMount::ReadFile { .. })),
            "an empty folder"
        );
        for target in ["..1", "..2"] {
            swap(
                home.path(),
                target,
                &[(PROFILES_FILE, "{}"), (CONFIG_FILE, "[]")],
            );
            timeout(Duration::from_secs(2), mount.changed())
                .await
                .unwrap();
            mount.read().unwrap();
        }
        // One swap is several events, of which some come late.
        for _ in 0..20 {
            if timeout(Duration::from_millis(200), mount.changed())
                .await
                .is_err()
            {
                return;
            }
            mount.read().unwrap();
        }
        panic!("reading rings for itself");
    }

    #[tokio::test]
    async fn a_link_that_moves_without_an_event_is_found_by_looking() {
        let home = TempDir::new().unwrap();
        swap(
            home.path(),
            "..1",
            &[(PROFILES_FILE, "{}"), (CONFIG_FILE, "[]")],
        );
        let mut mount = Mount::new(home.path().to_owned());
        mount.watcher = None;
        mount.read().unwrap();
        swap(
            home.path(),
            "..2",
            &[(PROFILES_FILE, "{}"), (CONFIG_FILE, "[]")],
        );
        mount.bell.1.mark_unchanged();
        timeout(Duration::from_secs(3), mount.changed())
            .await
            .unwrap();
        assert!(mount.watcher.is_some(), "and events are had again");
    }

    #[test]
    fn everything_is_of_one_target() {
        let home = TempDir::new().unwrap();
        let file = |content: &str| Described {
            key: "k.ca".to_owned(),
            sha256: digest(content.as_bytes()),
        };
        let profiles =
            Profiles([("p".to_owned(), Profile::new(Some(file("one")), None, None))].into());
        let profiles = profiles.to_json();
        swap(
            home.path(),
            "..1",
            &[
                (PROFILES_FILE, &profiles),
                (CONFIG_FILE, "[]"),
                ("k.ca", "one"),
            ],
        );
        let mut mount = Mount::new(home.path().to_owned());
        let snapshot = mount.read().unwrap();
        assert_eq!(snapshot.revision, revision(profiles.as_bytes(), b"[]"));
        assert_eq!(snapshot.files["k.ca"].as_ref().unwrap().as_slice(), b"one");
        assert!(snapshot.document.is_ok() && snapshot.profiles.is_ok());
    }

    #[test]
    fn a_file_that_cannot_be_had_costs_no_other() {
        let home = TempDir::new().unwrap();
        let large = "x".repeat(1024 * 1024 + 1);
        let file = |key: &str| {
            Some(Described {
                key: key.to_owned(),
                sha256: digest(b""),
            })
        };
        let profile = |key: &str| Profile::new(file(key), None, None);
        let all = ["gone", "large", "good", "../escape"].map(|key| (key.to_owned(), profile(key)));
        let profiles = Profiles(all.into()).to_json();
        let files = [
            (PROFILES_FILE, profiles.as_str()),
            (CONFIG_FILE, "[]"),
            ("large", &large),
            ("good", ""),
        ];
        swap(home.path(), "..1", &files);
        fs::write(home.path().join("escape"), "secret").unwrap();
        let snapshot = Mount::new(home.path().to_owned()).read().unwrap();
        assert!(snapshot.files["gone"].is_err());
        assert_eq!(
            snapshot.files["large"].as_ref().unwrap_err(),
            "more than 1048576 bytes"
        );
        assert!(snapshot.files["good"].is_ok());
        assert_eq!(
            snapshot.files.len(),
            3,
            "a key that is no plain name is not followed"
        );
    }
}
