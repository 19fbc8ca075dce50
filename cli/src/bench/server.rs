//! The other processes of a measurement: further instances of this program.

use crate::failure::Failure;
use crate::lanes::LaneOptions;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};

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
        let mut lines = Vec::new();
        for line in output.into_iter().flat_map(|output| BufReader::new(output).lines()) {
            let line = line.map_err(Failure::system("reading from the second process"))?;
            if line == "ready" {
                return Ok(Self { child, _input: input, lines });
            }
            lines.push(line);
        }
        let ended = child.wait().map_err(Failure::system("waiting for the second process"))?;
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

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself; after this it is reaped in any case.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
