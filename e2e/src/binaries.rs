//! Where do the programs of Kubernetes come from? Built once from Go modules, then taken from the cache.
//!
//! The cache lies outside the target folder, under the hash of all that goes into the build: `cargo clean` costs no
//! ten minutes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use sha2::{Digest as _, Sha256};

use crate::image::hex;
use crate::tools;
use crate::workspace;
use crate::{Say, command};

/// What the multi-call binary `controlplane` can be called as.
const PROGRAMS: [&str; 7] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "kubectl",
];
const PACKAGES: [&str; 4] = [".", "./coredns", "./pause", "./keeper"];
/// Debug information would add half a gigabyte to what the linker holds in memory.
const COMPILER_FLAGS: &str = "-gcflags=all=-dwarf=false";
const BUILD_WITHIN: Duration = Duration::from_hours(1);

/// A folder with the programs of the control plane and the node.
#[derive(Clone, Debug)]
pub struct Binaries {
    folder: PathBuf,
    /// The version of Kubernetes, e.g. `1.37.2`.
    pub version: String,
    /// Whether they were there already.
    pub is_cached: bool,
}

impl Binaries {
    /// The path of one of ours; the name as it is of one that the machine has.
    pub fn program(&self, name: &str) -> PathBuf {
        let ours = self.folder.join(name);
        if ours.exists() {
            ours
        } else {
            PathBuf::from(name)
        }
    }
}

/// Takes the programs from the cache, or builds them: minutes, with progress told to `say`.
pub fn control_plane(say: Say<'_>) -> Result<Binaries> {
    let source = workspace::root().join("e2e/controlplane");
    let version = kubernetes_version(&source)?;
    let flags = linker_flags(&version)?;
    let cache = workspace::cache()?;
    let folder = cache.join(format!("controlplane-{}", fingerprint(&source, &flags)?));
    let lock =
        std::fs::File::create(cache.join("controlplane.lock")).context("open the cache's lock")?;
    lock.lock().context("lock the cache")?;
    if folder.exists() {
        return Ok(Binaries {
            folder,
            version,
            is_cached: true,
        });
    }
    tools::check_go()?;
    let unfinished = folder.with_extension("unfinished");
    let _ = std::fs::remove_dir_all(&unfinished);
    std::fs::create_dir_all(&unfinished)
        .with_context(|| format!("make {}", unfinished.display()))?;
    build(&source, &flags, &unfinished, say)?;
    for program in PROGRAMS {
        std::os::unix::fs::symlink("controlplane", unfinished.join(program))
            .with_context(|| format!("link {program}"))?;
    }
    std::fs::rename(&unfinished, &folder).with_context(|| format!("make {}", folder.display()))?;
    Ok(Binaries {
        folder,
        version,
        is_cached: false,
    })
}

fn build(source: &Path, flags: &str, output: &Path, say: Say<'_>) -> Result<()> {
    say("fetching Go modules");
    let scratch = workspace::target().join("go-build");
    std::fs::create_dir_all(&scratch).with_context(|| format!("make {}", scratch.display()))?;
    let list = go(source, &scratch)
        .args(["list", "-deps"])
        .args(PACKAGES)
        .answer()?;
    let total = list.lines().count();

    let mut build = go(source, &scratch).0;
    build
        .args([
            "build",
            "-v",
            "-trimpath",
            COMPILER_FLAGS,
            "-ldflags",
            flags,
            "-o",
        ])
        .arg(output)
        .args(PACKAGES);
    let compiled = AtomicUsize::new(0);
    command::watched(&mut build, BUILD_WITHIN, |_| {
        let number = compiled.fetch_add(1, Ordering::Relaxed) + 1;
        say(&format!("compiling Go package {number} of at most {total}"));
    })
}

struct Go(Command);

impl Go {
    fn args<'a>(mut self, args: impl IntoIterator<Item = &'a str>) -> Self {
        self.0.args(args);
        self
    }

    fn answer(mut self) -> Result<String> {
        command::output(&mut self.0, BUILD_WITHIN)
    }
}

/// `go`, at work on static programs, with its scratch files where ours are.
fn go(source: &Path, scratch: &Path) -> Go {
    let mut command = Command::new("go");
    command
        .current_dir(source)
        .env("CGO_ENABLED", "0")
        .env("GOTMPDIR", scratch)
        .env("GOFLAGS", "-mod=readonly");
    Go(command)
}

/// Without a version set at link time the server calls itself `v0.0.0-master`, and clients stumble.
fn linker_flags(version: &str) -> Result<String> {
    let mut numbers = version.split('.');
    let (major, minor) = (
        numbers.next().context("major version")?,
        numbers.next().context("minor version")?,
    );
    let facts = [
        ("gitVersion", format!("v{version}")),
        ("gitMajor", major.to_owned()),
        ("gitMinor", minor.to_owned()),
        ("gitCommit", "modules".to_owned()),
        ("gitTreeState", "clean".to_owned()),
        ("buildDate", "1970-01-01T00:00:00Z".to_owned()),
    ];
    let mut flags = "-s -w".to_owned();
    for package in [
        "k8s.io/component-base/version",
        "k8s.io/client-go/pkg/version",
    ] {
        for (fact, value) in &facts {
            flags.extend([" -X ", package, ".", fact, "=", value]);
        }
    }
    Ok(flags)
}

fn kubernetes_version(source: &Path) -> Result<String> {
    let path = source.join("go.mod");
    let module =
        std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let version = module
        .lines()
        .find_map(|line| line.trim().strip_prefix("k8s.io/kubernetes v"));
    Ok(version
        .context("go.mod names no version of k8s.io/kubernetes")?
        .trim()
        .to_owned())
}

/// A hash of every source file, the modules and the flags.
fn fingerprint(source: &Path, flags: &str) -> Result<String> {
    let mut files = vec![source.join("go.mod"), source.join("go.sum")];
    for package in PACKAGES {
        let folder = source.join(package);
        for entry in
            std::fs::read_dir(&folder).with_context(|| format!("read {}", folder.display()))?
        {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "go") {
                files.push(path);
            }
        }
    }
    files.sort();
    let mut hash = Sha256::new();
    for part in [flags, COMPILER_FLAGS, std::env::consts::ARCH] {
        hash.update(part);
        hash.update([0]);
    }
    for file in files {
        hash.update(std::fs::read(&file).with_context(|| format!("read {}", file.display()))?);
        hash.update([0]);
    }
    Ok(hex(&hash.finalize()).chars().take(16).collect())
}
