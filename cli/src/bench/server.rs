//! The other process of a measurement: this program, started again.

use crate::failure::Failure;
use crate::lanes::LaneOptions;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};

/// A serving process. It ends when its standard input does, so it cannot outlive this one.
pub(super) struct Server {
    child: Child,
    _input: Option<ChildStdin>,
    address: String,
}

impl Server {
    /// Serves `bytes` of memory.
    pub(super) fn start(
        bytes: u64,
        core: Option<usize>,
        lanes: &LaneOptions,
    ) -> Result<Self, Failure> {
        let memory = format!("bench={bytes}");
        let arguments =
            ["serve", "--listen", "127.0.0.1:0", "--until-stdin-ends", "--memory", &memory];
        let lanes = lanes.words();
        let arguments: Vec<&str> =
            arguments.into_iter().chain(lanes.iter().map(String::as_str)).collect();
        let (child, input, lines) = start(&arguments, core)?;
        let first = lines.first().and_then(|line| line.split(' ').nth(2));
        let address = first.ok_or_else(|| failed("the serving process said nothing"))?.to_owned();
        Ok(Self { child, _input: input, address })
    }

    pub(super) fn process(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn segment(&self) -> String {
        format!("{}/bench", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        stop(&mut self.child);
    }
}

pub(super) fn stop(child: &mut Child) {
    // It may have ended by itself; either way it is gone and reaped after this.
    let _ = child.kill();
    let _ = child.wait();
}

/// Starts this program with `arguments` and returns what it prints up to the line `ready`.
pub(super) fn start(
    arguments: &[&str],
    core: Option<usize>,
) -> Result<(Child, Option<ChildStdin>, Vec<String>), Failure> {
    let system = |what, error| Failure::System { what, error };
    let program = std::env::current_exe().map_err(|error| system("finding this program", error))?;
    let mut command = Command::new(program);
    command.args(arguments);
    if let Some(core) = core {
        command.args(["--cores", &core.to_string()]);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child =
        command.spawn().map_err(|error| system("starting the second process", error))?;
    let input = child.stdin.take();
    let output = child.stdout.take().ok_or_else(|| failed("it has no output"))?;
    let mut lines = Vec::new();
    for line in BufReader::new(output).lines() {
        let line = line.map_err(|error| system("reading from the second process", error))?;
        if line == "ready" {
            return Ok((child, input, lines));
        }
        lines.push(line);
    }
    let ended = child.wait().map_err(|error| system("waiting for the second process", error))?;
    Err(Failure::SecondProcess { code: ended.code().and_then(|code| u8::try_from(code).ok()) })
}

fn failed(text: &str) -> Failure {
    Failure::System { what: "starting the second process", error: std::io::Error::other(text) }
}
