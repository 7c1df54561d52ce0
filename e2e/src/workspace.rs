//! Where do things live? The source tree, the target folder and the cache.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// The root of the source tree.
pub fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// Cargo's target folder: everything that a run writes lives here, but what [`cache`] keeps.
pub fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => root().join(folder),
        None => root().join("target"),
    }
}

/// What outlives `cargo clean`: programs that take minutes to build.
pub fn cache() -> Result<PathBuf> {
    let base = match std::env::var_os("XDG_CACHE_HOME").filter(|value| !value.is_empty()) {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(
            std::env::var_os("HOME").context("neither XDG_CACHE_HOME nor HOME is set")?,
        )
        .join(".cache"),
    };
    let cache = base.join("spanwire");
    std::fs::create_dir_all(&cache)
        .with_context(|| format!("make the cache folder {}", cache.display()))?;
    Ok(cache)
}

/// `path` as seen from `base`; both absolute.
pub fn relative(path: &Path, base: &Path) -> PathBuf {
    let shared = path
        .components()
        .zip(base.components())
        .take_while(|(a, b)| a == b)
        .count();
    let up = base
        .components()
        .skip(shared)
        .map(|_| std::path::Component::ParentDir);
    up.chain(path.components().skip(shared)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sibling_folder_is_reached_over_the_parent() {
        let path = relative(
            Path::new("/src/config/default"),
            Path::new("/src/target/demo/manifests"),
        );
        assert_eq!(path, Path::new("../../../config/default"));
    }
}
