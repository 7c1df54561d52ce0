//! What is in a container image? An OCI layout in one archive: one uncompressed layer, written without a daemon.
//!
//! The same files give the same bytes: no times, no owners of this machine.

use std::fs::File;
use std::io::{Read as _, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

/// An image to be written.
#[derive(Clone, Debug)]
pub struct Image<'a> {
    /// With registry and tag, as containerd stores it: `docker.io/library/spanwire:dev`.
    pub reference: &'a str,
    pub files: Vec<Entry>,
    pub entrypoint: &'a [&'a str],
    pub environment: &'a [(&'a str, &'a str)],
    /// A number: nothing inside resolves names.
    pub user: &'a str,
}

/// A file of an image.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Where it is in the image, without the leading `/`.
    pub path: PathBuf,
    pub content: Content,
}

/// Where a file's bytes come from.
#[derive(Clone, Debug)]
pub enum Content {
    /// A file of this machine; it stays executable if it is.
    File(PathBuf),
    Link(PathBuf),
    Text(&'static str),
    /// A folder; one that anybody may write to if `is_shared`.
    Folder {
        is_shared: bool,
    },
}

impl Image<'_> {
    /// Writes the archive to `path` and returns its size in bytes.
    pub fn write(&self, path: &Path) -> Result<u64> {
        let layer = path.with_extension("layer");
        let written = self.write_with_layer(path, &layer);
        let _ = std::fs::remove_file(&layer);
        written.with_context(|| format!("write image {}", self.reference))
    }

    fn write_with_layer(&self, path: &Path, layer: &Path) -> Result<u64> {
        self.write_layer(layer)?;
        let (digest, size) = digest_of(layer)?;
        let config = serde_json::to_vec(&self.config(&digest))?;
        let layer_descriptor = json!({
            "mediaType": "application/vnd.oci.image.layer.v1.tar",
            "digest": format!("sha256:{digest}"),
            "size": size,
        });
        let manifest = serde_json::to_vec(&json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
            "layers": [layer_descriptor],
        }))?;
        let mut entry = descriptor("application/vnd.oci.image.manifest.v1+json", &manifest);
        entry["annotations"] = json!({"io.containerd.image.name": self.reference});
        let index = serde_json::to_vec(&json!({"schemaVersion": 2, "manifests": [entry]}))?;

        let mut archive = Builder::new(File::create(path)?);
        append(
            &mut archive,
            "oci-layout",
            br#"{"imageLayoutVersion":"1.0.0"}"#,
        )?;
        append(&mut archive, "index.json", &index)?;
        for blob in [&config, &manifest] {
            append(
                &mut archive,
                &format!("blobs/sha256/{}", hex(&Sha256::digest(blob))),
                blob,
            )?;
        }
        let mut header = header(EntryType::Regular, 0o644, size);
        archive.append_data(
            &mut header,
            format!("blobs/sha256/{digest}"),
            File::open(layer)?,
        )?;
        archive.into_inner()?.sync_data()?;
        Ok(std::fs::metadata(path)?.len())
    }

    fn write_layer(&self, path: &Path) -> Result<()> {
        let mut layer = Builder::new(std::io::BufWriter::new(File::create(path)?));
        for Entry { path, content } in &self.files {
            match content {
                Content::File(source) => {
                    let file =
                        File::open(source).with_context(|| format!("open {}", source.display()))?;
                    let metadata = file.metadata()?;
                    let mode = if is_executable(&metadata) {
                        0o755
                    } else {
                        0o644
                    };
                    let mut header = header(EntryType::Regular, mode, metadata.len());
                    layer.append_data(&mut header, path, file)?;
                }
                Content::Text(text) => {
                    let mut header = header(EntryType::Regular, 0o644, text.len() as u64);
                    layer.append_data(&mut header, path, text.as_bytes())?;
                }
                Content::Link(target) => {
                    layer.append_link(&mut header(EntryType::Symlink, 0o777, 0), path, target)?;
                }
                Content::Folder { is_shared } => {
                    let mode = if *is_shared { 0o1777 } else { 0o755 };
                    layer.append_data(
                        &mut header(EntryType::Directory, mode, 0),
                        path,
                        std::io::empty(),
                    )?;
                }
            }
        }
        layer.into_inner()?.flush()?;
        Ok(())
    }

    fn config(&self, layer: &str) -> Value {
        let environment: Vec<String> = self
            .environment
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        json!({
            "architecture": architecture(),
            "os": "linux",
            "config": {"Entrypoint": self.entrypoint, "Env": environment, "User": self.user},
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{layer}")]},
        })
    }
}

/// Go's name for the machine's architecture, which images use.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn is_executable(metadata: &std::fs::Metadata) -> bool {
    std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o111 != 0
}

fn descriptor(media_type: &str, content: &[u8]) -> Value {
    let digest = format!("sha256:{}", hex(&Sha256::digest(content)));
    json!({"mediaType": media_type, "digest": digest, "size": content.len()})
}

fn digest_of(path: &Path) -> Result<(String, u64)> {
    let mut file = File::open(path)?;
    let (mut hash, mut size, mut buffer) = (Sha256::new(), 0, vec![0; 1 << 20]);
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            return Ok((hex(&hash.finalize()), size));
        }
        hash.update(buffer.get(..read).unwrap_or_default());
        size += read as u64;
    }
}

/// Bytes as digits, the way digests are written.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: [char; 16] = [
        '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f',
    ];
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .map(|digit| DIGITS[usize::from(digit)])
        .collect()
}

fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header
}

fn append(archive: &mut Builder<File>, path: &str, content: &[u8]) -> Result<()> {
    let mut header = header(EntryType::Regular, 0o644, content.len() as u64);
    Ok(archive.append_data(&mut header, path, content)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_files_give_the_same_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let image = Image {
            reference: "docker.io/library/example:dev",
            files: vec![Entry {
                path: "etc/motd".into(),
                content: Content::Text("hello"),
            }],
            entrypoint: &["/example"],
            environment: &[],
            user: "10000:10000",
        };
        let archives = ["a", "b"].map(|name| {
            let path = folder.path().join(name);
            image.write(&path).unwrap();
            std::fs::read(path).unwrap()
        });
        assert_eq!(archives[0], archives[1]);
    }
}
