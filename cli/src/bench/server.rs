//! The other processes of a measurement: further instances of this program.

use crate::failure::Failure;
use crate::lanes::LaneOptions;
use std::io::{self, BufRead, BufReader, ErrorKind};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// Maximum time between two lines of a process before `ready`. The slowest starts some hundred engines in
/// it, which takes seconds.
const SILENCE_MAX: Duration = Duration::from_secs(120);

/// A process. It ends with its standard input, so it cannot outlive this one.
pub(super) struct Process {
    child: Child,
    _input: Option<ChildStdin>,
    /// The lines printed before `ready`.
    pub(super) lines: Vec<String>,
}

impl Process {
    /// Starts this program with `arguments`, and reads its output up to the line `ready`.
    pub(super) fn start(arguments: &[&str], core: Option<usize>) -> Result<Self, Failure> {
        let program = std::env::current_exe().map_err(Failure::system("finding this program"))?;
        let mut command = Command::new(program);
        command.args(arguments);
        if let Some(core) = core {
            command.args(["--cores", &core.to_string()]);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(Failure::system("starting the second process"))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        // Its end kills the process, on which the thread that reads ends too.
        let mut started = Self { child, _input: input, lines: Vec::new() };
        let said = output.map(lines);
        loop {
            let line = said.as_ref().map_or(Ok(None), |said| next(said, SILENCE_MAX));
            match line.map_err(Failure::system("reading from the second process"))? {
                Some(line) if line == "ready" => return Ok(started),
                Some(line) => started.lines.push(line),
                None => break,
            }
        }
        let ended = started.child.wait();
        let ended = ended.map_err(Failure::system("waiting for the second process"))?;
        Err(Failure::SecondProcess { code: ended.code().and_then(|code| u8::try_from(code).ok()) })
    }

    /// Serves `bytes` of memory.
    pub(super) fn serve(
        bytes: u64,
        core: Option<usize>,
        lanes: &LaneOptions,
    ) -> Result<Self, Failure> {
        let memory = format!("bench={bytes}");
        let mut arguments =
            vec!["serve", "--listen", "127.0.0.1:0", "--until-stdin-ends", "--memory", &memory];
        let lanes = lanes.words();
        arguments.extend(lanes.iter().map(String::as_str));
        Self::start(&arguments, core)
    }

    /// Returns the segment of a serving process, from `serving at ADDRESS as NAME`.
    pub(super) fn segment(&self) -> String {
        let first = self.lines.first().and_then(|line| line.split(' ').nth(2));
        format!("{}/bench", first.unwrap_or_default())
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }
}

/// Reads lines up to `ready` or the end, on a thread of its own.
fn lines(output: ChildStdout) -> Receiver<io::Result<String>> {
    let (said, heard) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines() {
            let is_last = line.as_ref().map_or(true, |line| line == "ready");
            if said.send(line).is_err() || is_last {
                break;
            }
        }
    });
    heard
}

/// Returns the next line; `None` at the end.
///
/// # Errors
/// No line comes within `silence_max`, or reading fails.
fn next(heard: &Receiver<io::Result<String>>, silence_max: Duration) -> io::Result<Option<String>> {
    match heard.recv_timeout(silence_max) {
        Ok(line) => line.map(Some),
        Err(RecvTimeoutError::Disconnected) => Ok(None),
        Err(RecvTimeoutError::Timeout) => {
            let seconds = silence_max.as_secs();
            Err(io::Error::new(ErrorKind::TimedOut, format!("no line for {seconds} s")))
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself; after this it is reaped in any case.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that prints nothing is given up; one that ends or is ready is not waited for.
    #[test]
    fn silent_process_is_given_up() {
        let run = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
            command.spawn().unwrap()
        };
        let mut silent = run("echo first; read line");
        let heard = lines(silent.stdout.take().unwrap());
        assert_eq!(next(&heard, SILENCE_MAX).unwrap().as_deref(), Some("first"));
        let error = next(&heard, Duration::from_millis(1)).unwrap_err();
        assert_eq!(error.to_string(), "no line for 0 s");
        drop(silent.stdin.take());
        assert_eq!(next(&heard, SILENCE_MAX).unwrap(), None);
        silent.wait().unwrap();
        let mut ready = run("echo ready; echo more; read line");
        let heard = lines(ready.stdout.take().unwrap());
        assert_eq!(next(&heard, SILENCE_MAX).unwrap().as_deref(), Some("ready"));
        assert_eq!(next(&heard, SILENCE_MAX).unwrap(), None);
        drop(ready.stdin.take());
        ready.wait().unwrap();
    }
}
