//! Is a program of the cluster still running? One that was started inside a keeper's namespaces, with a log.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::command;
use crate::keeper::{self, Keeper};
use crate::processes::Process;

const END_WITHIN: Duration = Duration::from_secs(10);

/// A running program; it ends with its keeper, not with this handle.
#[derive(Debug)]
pub struct Daemon {
    name: String,
    /// `nsenter`, which waits for the program and ends as it ends.
    guard: Child,
    log: PathBuf,
}

impl Daemon {
    /// Starts `program` inside; what it writes goes to `logs/<name>.log`.
    pub fn start(keeper: &Keeper, program: &Command, logs: &Path) -> Result<Daemon> {
        let path = Path::new(program.get_program());
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let log = logs.join(format!("{name}.log"));
        let file = File::options().create(true).append(true).open(&log);
        let file = file.with_context(|| format!("open {}", log.display()))?;
        let mut command = keeper.enter();
        command.arg(path).args(program.get_args());
        for (key, value) in program
            .get_envs()
            .filter_map(|(key, value)| Some((key, value?)))
        {
            command.env(key, value);
        }
        command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file);
        let guard = command.spawn().with_context(|| format!("start {name}"))?;
        Ok(Daemon { name, guard, log })
    }

    /// An error with the end of the log, if the program has ended.
    pub fn check(&mut self) -> Result<()> {
        if let Some(status) = self
            .guard
            .try_wait()
            .with_context(|| format!("look at {}", self.name))?
        {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            bail!(
                "{} ended ({status}):\n{}",
                self.name,
                command::last_lines(&log)
            );
        }
        Ok(())
    }

    /// Kills the program, and waits until it is gone.
    pub fn end(self) -> Result<()> {
        let pid = self
            .pid()
            .with_context(|| format!("{} has ended", self.name))?;
        Process::new(pid.cast_signed())?.kill()?;
        command::wait(self.guard, &self.name, END_WITHIN).map(drop)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The program's process id, as seen from outside.
    pub fn pid(&self) -> Option<u32> {
        keeper::only_child(self.guard.id())
    }
}
