//! What did another program answer? Runs one to its end, with a deadline, and turns failure into an error that
//! quotes it.
//!
//! Each program gets a process group of its own: a Ctrl-C in the terminal reaches us alone, and we end the group.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::interrupt;

const PAUSE: Duration = Duration::from_millis(5);
const GRACE: Duration = Duration::from_secs(5);
const QUOTED_LINES: usize = 25;

/// How a program ended and what it wrote.
#[derive(Debug)]
pub struct Answer {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Answer {
    /// Its standard output, or an error that quotes the end of what it wrote.
    pub fn ok(self, what: &str) -> Result<String> {
        if self.status.success() {
            return Ok(self.stdout);
        }
        let said = format!("{}\n{}", self.stdout.trim(), self.stderr.trim());
        bail!("{what}: {}\n{}", self.status, last_lines(said.trim()));
    }
}

/// Runs `command` and returns its standard output; any exit code but 0 is an error.
pub fn output(command: &mut Command, within: Duration) -> Result<String> {
    let what = name(command);
    answer(command, None, within)?.ok(&what)
}

/// Runs `command` with `input` (or nothing) on its standard input, whatever its exit code.
pub fn answer(command: &mut Command, input: Option<&[u8]>, within: Duration) -> Result<Answer> {
    let what = name(command);
    let (mut stdout, mut stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
    command
        .stdout(stdout.try_clone()?)
        .stderr(stderr.try_clone()?)
        .process_group(0);
    match input {
        Some(bytes) => command.stdin(filled(bytes)?),
        None => command.stdin(Stdio::null()),
    };
    let child = command.spawn().with_context(|| format!("start {what}"))?;
    let status = wait(child, &what, within)?;
    Ok(Answer {
        status,
        stdout: content(&mut stdout)?,
        stderr: content(&mut stderr)?,
    })
}

/// Runs `command` and tells `hear` each line of its standard error as it comes; an error quotes the last of them.
pub fn watched(command: &mut Command, within: Duration, hear: impl Fn(&str) + Send) -> Result<()> {
    let what = name(command);
    command
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("start {what}"))?;
    let stderr = child.stderr.take().context("read what it says")?;
    let (status, said) = std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let lines = BufReader::new(stderr).lines().map_while(Result::ok);
            lines
                .inspect(|line| hear(line))
                .collect::<Vec<_>>()
                .join("\n")
        });
        (
            wait(child, &what, within),
            reader.join().unwrap_or_default(),
        )
    });
    let status = status?;
    if !status.success() {
        bail!("{what}: {status}\n{}", last_lines(&said));
    }
    Ok(())
}

/// Waits for `child`, the leader of a process group; ends the group at the deadline and at an interrupt.
pub fn wait(mut child: Child, what: &str, within: Duration) -> Result<ExitStatus> {
    let start = Instant::now();
    loop {
        if let Some(status) = child
            .try_wait()
            .with_context(|| format!("wait for {what}"))?
        {
            interrupt::check()?;
            return Ok(status);
        }
        if interrupt::is_asked() || start.elapsed() > within {
            end(&mut child);
            interrupt::check()?;
            bail!("{what} took longer than {} s", within.as_secs());
        }
        std::thread::sleep(PAUSE);
    }
}

/// Asks a process group to end, so that it can tidy up after itself, and insists after a while.
fn end(leader: &mut Child) {
    let group = rustix::process::Pid::from_child(leader);
    let _ = rustix::process::kill_process_group(group, rustix::process::Signal::INT);
    let start = Instant::now();
    while start.elapsed() < GRACE {
        if !matches!(leader.try_wait(), Ok(None)) {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    let _ = leader.wait();
}

/// The last lines of a text, for an error message.
pub fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines
        .get(lines.len().saturating_sub(QUOTED_LINES)..)
        .unwrap_or_default()
        .join("\n")
}

/// A program and its first arguments, as a person would call it.
pub fn name(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program())
        .file_name()
        .unwrap_or_default();
    let words = std::iter::once(program).chain(command.get_args().take(6));
    words
        .map(|word| word.to_string_lossy().into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}

fn filled(bytes: &[u8]) -> Result<File> {
    let mut file = tempfile::tempfile()?;
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file)
}

fn content(file: &mut File) -> Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
