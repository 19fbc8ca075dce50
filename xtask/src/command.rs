//! Runs a program with a deadline, and its output in a log.

use anyhow::{Context, Result, bail};
use std::cell::Cell;
use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(50);
/// Maximum lines of a failed program's output that are shown; the log has all of them.
const TAIL_LINES: usize = 40;

/// Duration of a clock tick in `/proc`, on every Linux that Rust supports.
const TICK: Duration = Duration::from_millis(10);

thread_local! {
    /// Processor time of the programs run by this thread.
    static PROCESSOR: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Runs `command` until `deadline` with both output streams in the file `log`, and returns the output.
///
/// # Errors
/// The exit status of the program, or the reason why it did not run, followed by the end of its
/// output.
pub(crate) fn run(command: Command, log: &Path, deadline: Instant) -> Result<String> {
    let ended = run_logged(command, log, deadline).context("cannot be run")?;
    let output = String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned();
    let (end, log) = match ended {
        Some(status) if status.success() => return Ok(output),
        Some(status) => (status.to_string(), log.display()),
        None => ("killed: its stage's budget is used up".to_owned(), log.display()),
    };
    let last = output.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no output");
    bail!("{end}: {}; output: {log}\n{}", last.trim(), tail(&output, TAIL_LINES))
}

/// Returns the program's exit status, or `None` if the deadline passed and it was killed with its
/// children.
fn run_logged(
    mut command: Command,
    log: &Path,
    deadline: Instant,
) -> io::Result<Option<ExitStatus>> {
    if let Some(folder) = log.parent() {
        fs::create_dir_all(folder)?;
    }
    let file = File::create(log)?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    // The log is for people and parsers, not for a terminal.
    command.env("CARGO_TERM_COLOR", "never").env("NO_COLOR", "1");
    wait(command.spawn()?, deadline)
}

/// Returns the compiler's own platform.
pub(crate) fn compiler_host() -> Result<String> {
    let text = compiler_says(&["-vV"]).unwrap_or_default();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("rustc does not say what it compiles for")
}

/// Returns what the compiler prints, if it succeeds.
pub(crate) fn compiler_says(arguments: &[&str]) -> Option<String> {
    let output = Command::new("rustc").args(arguments).output().ok()?;
    String::from_utf8(output.stdout).ok().filter(|_| output.status.success())
}

/// Returns the processor time of the programs that this thread has run since the last call,
/// including awaited children.
pub(crate) fn take_processor_time() -> Duration {
    PROCESSOR.take()
}

/// Adds processor time of programs that another thread ran for this one.
pub(crate) fn add_processor_time(took: Duration) {
    PROCESSOR.set(PROCESSOR.get() + took);
}

/// Returns the time of a process and of its awaited children: fields 14 to 17 of `/proc/PID/stat`.
fn processor_time(stat: &str) -> Option<Duration> {
    // The second field is a name in parentheses, which may contain spaces.
    let fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11).take(4);
    let ticks: u32 = fields.map(|field| field.parse::<u32>().unwrap_or(0)).sum();
    Some(TICK * ticks)
}

/// Waits for a child and counts its processor time.
fn wait(mut child: Child, deadline: Instant) -> io::Result<Option<ExitStatus>> {
    let mut took = Duration::ZERO;
    let stat = format!("/proc/{}/stat", child.id());
    loop {
        // Read before the wait that may reap the process: the value is at most one poll old.
        let read = fs::read_to_string(&stat).ok().and_then(|stat| processor_time(&stat));
        took = read.unwrap_or(took);
        let ended = child.try_wait()?;
        let is_late = Instant::now() >= deadline;
        if ended.is_none() && is_late {
            kill_tree(child.id());
            child.kill()?;
            child.wait()?;
        }
        if ended.is_some() || is_late {
            add_processor_time(took);
            return Ok(ended);
        }
        thread::sleep(POLL);
    }
}

/// Whether a program runs and exits with success, such as `cargo deny --version`.
pub(crate) fn answers(command: &mut Command) -> bool {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// `cargo` in the workspace's root, without the variables that cargo set for this program: build
/// scripts that read them, such as ring's, would otherwise run again after each manual call of
/// cargo.
pub(crate) fn cargo<'a>(root: &Path, arguments: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = calling_cargo("cargo");
    command.current_dir(root).args(arguments);
    command
}

/// A program that calls cargo, without these variables either.
pub(crate) fn calling_cargo(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// Returns the command at the lowest priority, which takes only idle processors.
pub(crate) fn modest(command: Command) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", "19"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => nice.env(name, value),
            None => nice.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        nice.current_dir(folder);
    }
    nice
}

/// Kills a process and all its descendants: cargo's own end leaves its test binaries running.
fn kill_tree(process: u32) {
    // A stopped process starts no further children.
    signal("-STOP", process);
    for thread in fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten() {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        children.split_whitespace().filter_map(|child| child.parse().ok()).for_each(kill_tree);
    }
    signal("-KILL", process);
}

fn signal(name: &str, process: u32) {
    answers(Command::new("kill").args([name, &process.to_string()]));
}

/// Lines of a panic's message, after the one with its place.
const MESSAGE_LINES: usize = 3;

/// Returns the last lines, preceded by those that name the failures, with the messages of panics: a test runner that
/// continues after a failure ends with passed tests, and a panic with its backtrace.
fn tail(output: &str, lines: usize) -> String {
    let all: Vec<_> = output.lines().collect();
    let (before, last) = all.split_at(all.len().saturating_sub(lines));
    let mut named = Vec::new();
    let mut message = 0;
    for line in before {
        let is_panic = line.contains(" panicked at ");
        if is_panic || line.trim_end().ends_with(" FAILED") || line.contains(" FAIL [") {
            named.push(*line);
            message = if is_panic { MESSAGE_LINES } else { 0 };
        } else if message > 0 && !line.starts_with("note: ") && *line != "stack backtrace:" {
            named.push(*line);
            message -= 1;
        } else {
            message = 0;
        }
    }
    named.truncate(lines);
    [named.as_slice(), last].concat().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Result<String> {
        let scratch = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        run(command, &scratch.path().join("log"), Instant::now() + limit)
    }

    #[test]
    fn processor_time_is_read_past_a_name_with_spaces() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 100 20 3 1 20 0 1 0";
        assert_eq!(processor_time(stat), Some(Duration::from_millis(1_240)));
        assert_eq!(processor_time(""), None);
    }

    #[test]
    fn processor_time_counts_what_a_program_has_started() {
        take_processor_time();
        let script = "sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done'; sleep 0.2";
        shell(script, Duration::from_secs(60)).unwrap();
        assert!(take_processor_time() >= TICK);
        assert_eq!(take_processor_time(), Duration::ZERO);
    }

    #[test]
    fn tail_is_the_last_lines_and_the_failures_before() {
        assert_eq!(tail("a\nb\nc\n", 2), "b\nc");
        assert_eq!(tail("a\n", 2), "a");
        assert_eq!(tail("test x ... FAILED\na\nb\nc\n", 2), "test x ... FAILED\nb\nc");
        let panic = "thread 'x' panicked at x.rs:1:2:\nassertion failed\n left: 1\n";
        let output = format!("{panic}stack backtrace:\n 0: begin\n 1: panic\na\n");
        assert_eq!(tail(&output, 1), "thread 'x' panicked at x.rs:1:2:\na");
        assert_eq!(tail(&output, 3), format!("{panic} 0: begin\n 1: panic\na"));
    }

    #[test]
    fn late_program_is_killed_with_what_it_started() {
        let started = Instant::now();
        let script = "sleep 60 & echo $!; wait";
        let error = shell(script, Duration::from_millis(500)).unwrap_err().to_string();
        assert!(started.elapsed() < Duration::from_secs(20));
        assert!(error.starts_with("killed"), "{error}");
        let grandchild = error.lines().last().unwrap();
        let patience = Instant::now() + Duration::from_secs(20);
        while is_running(grandchild) {
            assert!(Instant::now() < patience, "process {grandchild} still runs");
            thread::sleep(POLL);
        }
    }

    /// A process may remain as a zombie if nothing reaps orphans.
    fn is_running(process: &str) -> bool {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
    }

    #[test]
    fn output_is_returned_or_ends_the_error() {
        assert_eq!(shell("echo out", Duration::from_secs(20)).unwrap(), "out\n");
        let error = shell("echo one; echo two; exit 3", Duration::from_secs(20)).unwrap_err();
        let error = error.to_string();
        assert!(error.starts_with("exit status: 3: two; output: "), "{error}");
        assert!(error.ends_with("\none\ntwo"), "{error}");
    }
}
