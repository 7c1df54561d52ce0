//! What does a real router need around it in an image? Its libraries, Python, and one SASL plug-in.
//!
//! `SPANWIRE_SKROUTERD` names the router's binary, built outside this project from its public sources;
//! `SPANWIRE_SKROUTERD_PYTHON` the folder of its own Python files, if that is not `../lib/skupper-router/python` as seen
//! from the binary's folder.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::command;
use crate::image::{Content, Entry};

const VARIABLE: &str = "SPANWIRE_SKROUTERD";
const PYTHON_VARIABLE: &str = "SPANWIRE_SKROUTERD_PYTHON";
/// Where the router and its Python files are in the image: below `/tmp`, where a build may have put them, a volume would
/// hide them.
const PROGRAM: &str = "usr/sbin/skrouterd";
const PYTHON: &str = "usr/lib/skupper-router/python";
/// Parts of the standard library that no router loads.
const UNUSED: [&str; 10] = [
    "__pycache__",
    "config-",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "sitecustomize.py",
    "test",
    "tkinter",
    "turtle",
];
const WITHIN: Duration = Duration::from_mins(1);

/// A router's binary and its Python files.
#[derive(Clone, Debug)]
pub struct RealRouter {
    program: PathBuf,
    python: PathBuf,
}

/// The arguments that start it in the image; the launcher adds the configuration.
pub const LAUNCH: [&str; 6] = [
    "/spanwire-standin",
    "launch",
    "--",
    "/usr/sbin/skrouterd",
    "-I",
    "/usr/lib/skupper-router/python",
];

impl RealRouter {
    /// The router that the environment names, if it names one.
    pub fn named() -> Result<Option<RealRouter>> {
        let Some(program) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) else {
            return Ok(None);
        };
        let program = PathBuf::from(program);
        let program = program
            .canonicalize()
            .with_context(|| format!("{VARIABLE}={}", program.display()))?;
        let python = match std::env::var_os(PYTHON_VARIABLE) {
            Some(folder) => PathBuf::from(folder),
            None => program.with_file_name("../lib/skupper-router/python"),
        };
        let python = python.canonicalize().with_context(|| {
            format!("find the router's Python files; {PYTHON_VARIABLE} may name them")
        })?;
        Ok(Some(RealRouter { program, python }))
    }

    /// All files that the image needs beside the launcher.
    pub fn files(&self) -> Result<Vec<Entry>> {
        let mut objects = BTreeSet::new();
        closure(&self.program, &mut objects)?;
        let python = objects
            .iter()
            .find_map(|path| python_home(path))
            .context("the router links no libpython")?;

        let mut files = vec![
            Entry {
                path: PROGRAM.into(),
                content: Content::File(self.program.clone()),
            },
            Entry {
                path: "etc/passwd".into(),
                content: Content::Text("router:x:10000:10000::/:/sbin/nologin\n"),
            },
            Entry {
                path: "etc/nsswitch.conf".into(),
                content: Content::Text("hosts: files dns\n"),
            },
        ];
        tree(&self.python, Path::new(PYTHON), &mut files)?;
        tree(&python, below_root(&python), &mut files)?;
        // Python loads these by itself, SASL its plug-in, so no loader shows them.
        let modules = files.iter().filter_map(|entry| match &entry.content {
            Content::File(path) if path.extension().is_some_and(|extension| extension == "so") => {
                Some(path.clone())
            }
            _ => None,
        });
        // SASL looks below /usr, the loader says /lib.
        let plugins = objects.iter().filter_map(|path| {
            path.parent()?
                .join("sasl2/libanonymous.so")
                .canonicalize()
                .ok()
        });
        let plugin = plugins.into_iter().next();
        for object in modules.chain(plugin.clone()).collect::<Vec<_>>() {
            closure(&object, &mut objects)?;
        }
        let libraries = objects
            .iter()
            .chain(&plugin)
            .filter(|path| **path != self.program && !path.starts_with(&python));
        files.extend(libraries.map(|path| Entry {
            path: below_root(path).to_owned(),
            content: Content::File(path.clone()),
        }));
        Ok(files)
    }
}

/// Adds what the loader would load for `object`, by the paths that it looks for.
fn closure(object: &Path, found: &mut BTreeSet<PathBuf>) -> Result<()> {
    let answer = command::answer(Command::new("ldd").arg(object), None, WITHIN)?;
    let paths = answer.stdout.lines().filter_map(|line| {
        let after = line.split_once("=> ").map_or(line, |(_, path)| path).trim();
        let path = after.split(" (").next()?;
        path.starts_with('/').then(|| PathBuf::from(path))
    });
    found.extend(paths);
    Ok(())
}

/// `/…/libpython3.11.so.1.0` → `/usr/lib/python3.11`, the path that is compiled into it.
fn python_home(library: &Path) -> Option<PathBuf> {
    let name = library.file_name()?.to_str()?;
    let version = name.strip_prefix("libpython")?.split(".so").next()?;
    Some(Path::new("/usr/lib").join(format!("python{version}")))
}

/// Adds the files below `source` under `target`, but what is never used.
fn tree(source: &Path, target: &Path, files: &mut Vec<Entry>) -> Result<()> {
    let entries =
        std::fs::read_dir(source).with_context(|| format!("read {}", source.display()))?;
    let mut entries: Vec<_> = entries.flatten().collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name();
        if UNUSED
            .iter()
            .any(|unused| name.to_string_lossy().starts_with(unused))
        {
            continue;
        }
        let (path, place) = (entry.path(), target.join(&name));
        if path.is_dir() {
            tree(&path, &place, files)?;
        } else if path.is_file() {
            files.push(Entry {
                path: place,
                content: Content::File(path),
            });
        }
    }
    Ok(())
}

fn below_root(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_python_is_in_its_library() {
        let library = Path::new("/lib/x86_64-linux-gnu/libpython3.11.so.1.0");
        assert_eq!(python_home(library), Some("/usr/lib/python3.11".into()));
        assert_eq!(python_home(Path::new("/lib/libm.so.6")), None);
    }
}
