//! Runs a program with a deadline and its output in a log.

use crate::report::Outcome;
use std::cell::Cell;
use std::env;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(50);
/// Scans for a program's children before it is killed.
const KILL_LOOKS_MAX: usize = 8;
/// Lines of a failed program's output that are shown; the log has all of them.
const TAIL_LINES: usize = 40;

/// Of a clock tick in `/proc`, on every Linux that Rust runs on.
const TICK: Duration = Duration::from_millis(10);

thread_local! {
    /// Processor time of the programs run by this thread.
    static PROCESSOR: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// End of a program.
pub(crate) enum End {
    Exited(ExitStatus),
    /// The deadline passed; the program and what it had started were killed.
    TimedOut,
    /// It could not be started or waited for.
    NotRun(io::Error),
}

/// A program that has ended, and where its output is.
pub(crate) struct Finished {
    end: End,
    log: PathBuf,
}

/// Runs `command` until `deadline` with both output streams in the file `log`.
pub(crate) fn run(command: Command, log: PathBuf, deadline: Instant) -> Finished {
    let end = run_logged(command, &log, deadline).unwrap_or_else(End::NotRun);
    Finished { end, log }
}

fn run_logged(mut command: Command, log: &Path, deadline: Instant) -> io::Result<End> {
    if let Some(folder) = log.parent() {
        fs::create_dir_all(folder)?;
    }
    let file = File::create(log)?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    // People and parsers read the log, never a terminal.
    command.env("CARGO_TERM_COLOR", "never").env("NO_COLOR", "1");
    wait(command.spawn()?, deadline)
}

/// The processor time of the programs that this thread has run since the last call, with all they
/// started and waited for.
pub(crate) fn take_processor_time() -> Duration {
    PROCESSOR.take()
}

/// Of a process and the children that it has waited for: fields 14 to 17 of `/proc/PID/stat`.
fn processor_time(stat: &str) -> Option<Duration> {
    // The second field is a name in parentheses, which may have spaces.
    let fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11).take(4);
    let ticks: u32 = fields.map(|field| field.parse::<u32>().unwrap_or(0)).sum();
    Some(TICK * ticks)
}

fn wait(child: Child, deadline: Instant) -> io::Result<End> {
    let mut took = Duration::ZERO;
    let end = wait_and_measure(child, deadline, &mut took);
    PROCESSOR.set(PROCESSOR.get() + took);
    end
}

fn wait_and_measure(mut child: Child, deadline: Instant, took: &mut Duration) -> io::Result<End> {
    let stat = format!("/proc/{}/stat", child.id());
    loop {
        // Read before the look that may reap the process: its last words are a poll old at most.
        let read = fs::read_to_string(&stat).ok().and_then(|stat| processor_time(&stat));
        *took = read.unwrap_or(*took);
        if let Some(status) = child.try_wait()? {
            return Ok(End::Exited(status));
        }
        if Instant::now() >= deadline {
            kill_tree(child.id());
            child.kill()?;
            child.wait()?;
            return Ok(End::TimedOut);
        }
        thread::sleep(POLL);
    }
}

impl Finished {
    /// Everything the program printed; nothing if its log is gone.
    pub(crate) fn output(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// The program exited with success.
    pub(crate) fn succeeded(&self) -> bool {
        matches!(self.end, End::Exited(status) if status.success())
    }

    /// Passed with a note made from the output, or failed with the output's tail.
    pub(crate) fn outcome(&self, note: impl Fn(&str) -> String) -> Outcome {
        let output = self.output();
        let why = match &self.end {
            End::Exited(status) if status.success() => return Outcome::Passed(note(&output)),
            End::Exited(status) => format!("{status}; whole output: {}", self.log.display()),
            End::NotRun(error) => format!("cannot be run: {error}"),
            End::TimedOut => {
                format!("killed: its stage's budget is used up; output: {}", self.log.display())
            }
        };
        Outcome::failed(why, tail(&output, TAIL_LINES))
    }
}

/// A program runs and exits with success, for `cargo deny --version` and the like.
pub(crate) fn answers(command: &mut Command) -> bool {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// `cargo` in the workspace's root, without the variables that cargo set for this program: build
/// scripts that read them, such as ring's, would run again after each cargo started by hand.
pub(crate) fn cargo<'a>(root: &Path, arguments: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new("cargo");
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command.current_dir(root).args(arguments);
    command
}

/// The same command at low priority: it takes only idle processors.
pub(crate) fn modest(command: Command) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", "10"]).arg(command.get_program()).args(command.get_args());
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

/// Kills a child and everything it has started: cargo's own end leaves its test binaries running.
fn kill_tree(root: u32) {
    let mut processes = vec![root];
    // A stopped process starts no children, so a few scans find all of them.
    for _ in 0..KILL_LOOKS_MAX {
        signal("-STOP", &processes);
        let Ok(table) = Command::new("ps").args(["-A", "-o", "pid=,ppid="]).output() else { break };
        let found = family(&String::from_utf8_lossy(&table.stdout), root);
        if found == processes {
            break;
        }
        processes = found;
    }
    signal("-KILL", &processes);
}

fn signal(name: &str, processes: &[u32]) {
    answers(Command::new("kill").arg(name).args(processes.iter().map(u32::to_string)));
}

/// `root` and all its descendants in a table of process id and parent id, nearest first.
fn family(table: &str, root: u32) -> Vec<u32> {
    let pairs: Vec<(u32, u32)> = table
        .lines()
        .filter_map(|line| {
            let mut numbers = line.split_whitespace().map(str::parse);
            Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
        })
        .collect();
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        let children = pairs.iter().filter(|(child, of)| *of == parent && !found.contains(child));
        let children: Vec<u32> = children.map(|&(child, _)| child).collect();
        found.extend(children);
        next += 1;
    }
    found
}

/// The last lines, after those that name what failed further up: a test runner that goes on after
/// a failure ends with what passed.
fn tail(output: &str, lines: usize) -> String {
    let all: Vec<_> = output.lines().collect();
    let (before, last) = all.split_at(all.len().saturating_sub(lines));
    let named = |line: &&&str| {
        let line = line.trim_end();
        line.ends_with(" FAILED") || line.contains(" panicked at ") || line.contains(" FAIL [")
    };
    let named: Vec<_> = before.iter().filter(named).take(lines).copied().collect();
    [named.as_slice(), last].concat().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grandchildren_are_found_and_strangers_and_cycles_are_not() {
        let table = "  1 0\n 10 1\n 11 10\n 12 11\n 20 1\n 30 30\n not a row\n";
        assert_eq!(family(table, 10), [10, 11, 12]);
        assert_eq!(family(table, 30), [30]);
        assert_eq!(family("5 6\n6 5\n", 5), [5, 6]);
    }

    #[test]
    fn processor_time_is_read_past_a_name_with_spaces() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 100 20 3 1 20 0 1 0";
        assert_eq!(processor_time(stat), Some(Duration::from_millis(1_240)));
        assert_eq!(processor_time(""), None);
    }

    #[test]
    fn processor_time_counts_what_a_program_has_started() {
        let scratch = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command
            .args(["-c", "sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done'; sleep 0.2"]);
        take_processor_time();
        let deadline = Instant::now() + Duration::from_secs(60);
        assert!(run(command, scratch.path().join("log"), deadline).succeeded());
        assert!(take_processor_time() >= TICK);
        assert_eq!(take_processor_time(), Duration::ZERO);
    }

    #[test]
    fn the_tail_is_the_last_lines() {
        assert_eq!(tail("a\nb\nc\n", 2), "b\nc");
        assert_eq!(tail("a\n", 2), "a");
        assert_eq!(tail("test x ... FAILED\na\nb\nc\n", 2), "test x ... FAILED\nb\nc");
    }

    #[test]
    fn a_program_that_outlives_its_deadline_is_killed_with_what_it_started() {
        let scratch = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 60 & echo $!; wait"]);
        let deadline = Instant::now() + Duration::from_millis(500);
        let finished = run(command, scratch.path().join("log"), deadline);
        assert!(Instant::now() < deadline + Duration::from_secs(20));
        assert!(matches!(finished.outcome(|_| String::new()), Outcome::Failed { .. }));
        let grandchild = finished.output();
        let patience = Instant::now() + Duration::from_secs(20);
        while is_running(grandchild.trim()) {
            assert!(Instant::now() < patience, "process {grandchild} still runs");
            thread::sleep(POLL);
        }
    }

    #[test]
    fn a_failing_program_shows_its_tail_and_a_passing_one_its_note() {
        let scratch = tempfile::tempdir().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let shell = |script| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            run(command, scratch.path().join("log"), deadline)
        };
        let failed = shell("echo before; echo wrong >&2; exit 3").outcome(str::to_owned);
        let Outcome::Failed { why, tail } = failed else { panic!("it did not fail") };
        assert!(why.contains('3'), "{why}");
        assert_eq!(tail, "before\nwrong");
        assert_eq!(shell("echo fine").outcome(str::to_owned), Outcome::Passed("fine\n".to_owned()));
    }

    fn is_running(process: &str) -> bool {
        let states = Command::new("ps").args(["-o", "stat=", "-p", process]).output().unwrap();
        let state = String::from_utf8(states.stdout).unwrap();
        !state.trim().is_empty() && !state.trim().starts_with('Z')
    }
}
