//! Which images does the bed need? The pause image, ours, and the router's.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::binaries::Binaries;
use crate::image::{Content, Entry, Image};
use crate::real_router::{self, RealRouter};
use crate::{Say, command, workspace};

/// Holds a pod's namespaces open.
pub const PAUSE: &str = "docker.io/library/spanwire-pause:dev";
/// The operator and the adaptor.
pub const SPANWIRE: &str = "docker.io/library/spanwire:dev";
/// The stand-in, or a real router.
pub const ROUTER: &str = "docker.io/library/spanwire-router:dev";

/// A shell and small tools, for pods of tests.
pub const TOOLBOX: &str = "docker.io/library/spanwire-toolbox:dev";

/// The user of our containers, and upstream's.
const USER: &str = "10000:10000";
const BUILD_WITHIN: Duration = Duration::from_hours(1);

/// An image that was written to a file.
#[derive(Clone, Debug)]
pub struct Archive {
    pub path: PathBuf,
    pub size: u64,
}

/// Writes the image that the node itself needs, and returns the archive's path.
pub fn pause(binaries: &Binaries, dir: &Path) -> Result<PathBuf> {
    let image = Image {
        reference: PAUSE,
        files: vec![file("pause", binaries.program("pause"))],
        entrypoint: &["/pause"],
        environment: &[],
        user: "65535:65535",
    };
    let path = dir.join("state/pause.tar");
    image.write(&path)?;
    Ok(path)
}

/// How our programs are built.
#[derive(Clone, Copy, Debug)]
pub enum Profile {
    /// Quickly.
    Bed,
    /// As they are shipped.
    Release,
}

const STATIC: &str = "-C target-feature=+crt-static";
/// Half a megabyte less of the operator is resident. It takes a C library from glibc 2.36 on to start such a program.
const PACKED: &str = "-C link-arg=-Wl,-z,pack-relative-relocs";

/// Builds our programs, static, and returns the folder that holds them; `SPANWIRE_PROGRAMS` may name a folder that has
/// them already, such as those of a release.
pub fn build(profile: Profile, say: Say<'_>) -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("SPANWIRE_PROGRAMS").filter(|folder| !folder.is_empty())
    {
        return Ok(folder.into());
    }
    say("compiling the operator, the adaptor and the stand-in");
    let (profile, codegen) = match profile {
        Profile::Bed => ("bed", STATIC.to_owned()),
        Profile::Release => ("release", format!("{STATIC} {PACKED}")),
    };
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let flags = format!(
        "CARGO_TARGET_{}_RUSTFLAGS",
        triple.to_uppercase().replace('-', "_")
    );
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(workspace::root())
        .args(["build", "--profile", profile, "--target", &triple])
        .args([
            "--package=spanwire-operator",
            "--package=spanwire-adaptor",
            "--package=spanwire-standin",
            "--bins",
        ])
        .env(flags, codegen);
    command::watched(&mut cargo, BUILD_WITHIN, |line| say(line.trim()))?;
    Ok(workspace::target().join(triple).join(profile))
}

/// Writes the image of the operator and the adaptor.
pub fn spanwire(programs: &Path, dir: &Path) -> Result<Archive> {
    let image = Image {
        reference: SPANWIRE,
        files: ["spanwire", "spanwire-adaptor"]
            .map(|name| file(name, programs.join(name)))
            .into(),
        entrypoint: &["/spanwire"],
        environment: &[],
        user: USER,
    };
    archive(&image, dir.join("state/spanwire.tar"))
}

/// Writes the router's image: the launcher, and behind it the stand-in or the real router that the environment names.
pub fn router(programs: &Path, dir: &Path) -> Result<Archive> {
    let real = RealRouter::named()?;
    let mut files = vec![
        file("spanwire-standin", programs.join("spanwire-standin")),
        Entry {
            path: "tmp".into(),
            content: Content::Folder { is_shared: true },
        },
    ];
    let entrypoint: &[&str] = match &real {
        Some(router) => {
            files.extend(router.files()?);
            &real_router::LAUNCH
        }
        None => &["/spanwire-standin", "launch"],
    };
    let image = Image {
        reference: ROUTER,
        files,
        entrypoint,
        environment: &[],
        user: USER,
    };
    archive(&image, dir.join("state/router.tar"))
}

/// Writes the image of the toolbox: the machine's static busybox under the names of its parts.
pub fn toolbox(dir: &Path) -> Result<Archive> {
    let parts = ["cat", "httpd", "mkdir", "nslookup", "sh", "sleep", "wget"].map(|name| Entry {
        path: Path::new("bin").join(name),
        content: Content::Link("/bin/busybox".into()),
    });
    let rest = [
        file("bin/busybox", "/bin/busybox".into()),
        Entry {
            path: "tmp".into(),
            content: Content::Folder { is_shared: true },
        },
    ];
    let image = Image {
        reference: TOOLBOX,
        files: parts.into_iter().chain(rest).collect(),
        entrypoint: &["/bin/sh"],
        environment: &[("PATH", "/bin")],
        user: USER,
    };
    archive(&image, dir.join("state/toolbox.tar"))
}

fn archive(image: &Image<'_>, path: PathBuf) -> Result<Archive> {
    let size = image.write(&path)?;
    Ok(Archive { path, size })
}

fn file(path: &str, source: PathBuf) -> Entry {
    Entry {
        path: path.into(),
        content: Content::File(source),
    }
}
