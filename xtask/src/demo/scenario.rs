//! What story does a script tell, where, and how is it run?

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use spanwire_e2e::kubectl::Kubectl;
use spanwire_e2e::{Say, command, namespace};

/// The comment by which a script names its namespaces.
const NAMESPACES: &str = "# namespaces:";
/// The namespaces of a script that names none.
const DEFAULT: [&str; 2] = ["demo-dmz-a", "demo-dmz-b"];
const WITHIN: Duration = Duration::from_mins(5);

/// A shell script that applies manifests.
#[derive(Debug)]
pub(crate) struct Scenario {
    script: PathBuf,
    namespaces: Vec<String>,
}

impl Scenario {
    pub(crate) fn read(script: &Path) -> Result<Scenario> {
        let text = std::fs::read_to_string(script)
            .with_context(|| format!("read {}", script.display()))?;
        let comment = text.lines().find_map(|line| line.strip_prefix(NAMESPACES));
        let namespaces = match comment {
            Some(names) => names.split_whitespace().map(str::to_owned).collect(),
            None => DEFAULT.map(str::to_owned).into(),
        };
        let script = script
            .canonicalize()
            .with_context(|| format!("find {}", script.display()))?;
        Ok(Scenario { script, namespaces })
    }

    pub(crate) fn namespaces(&self) -> Vec<&str> {
        self.namespaces.iter().map(String::as_str).collect()
    }

    pub(crate) fn title(&self) -> String {
        self.script
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    }

    pub(crate) fn make_namespaces(&self, kubectl: &Kubectl) -> Result<()> {
        namespace::make(kubectl, &self.namespaces())
    }

    /// Runs the script in `folder`, where it may write; `bin` goes first on its PATH.
    pub(crate) fn run(
        &self,
        kubectl: &Kubectl,
        folder: &Path,
        bin: Option<&Path>,
        say: Say<'_>,
    ) -> Result<()> {
        say(&self.title());
        std::fs::create_dir_all(folder.join("logs"))
            .with_context(|| format!("make {}", folder.display()))?;
        let log = folder.join("logs/scenario.log");
        let output = File::create(&log).with_context(|| format!("write {}", log.display()))?;
        let child = Command::new("sh")
            .arg(&self.script)
            .current_dir(folder)
            .envs(kubectl.environment())
            .env("PATH", path(bin)?)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .context("start the scenario")?;
        let status = command::wait(child, "the scenario", WITHIN)?;
        if !status.success() {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            bail!(
                "the scenario failed ({status}):\n{}",
                command::last_lines(&said)
            );
        }
        Ok(())
    }
}

fn path(first: Option<&Path>) -> Result<OsString> {
    let inherited = std::env::var_os("PATH").unwrap_or_default();
    let folders = first
        .map(Path::to_owned)
        .into_iter()
        .chain(std::env::split_paths(&inherited));
    std::env::join_paths(folders).context("put kubectl on the PATH")
}
