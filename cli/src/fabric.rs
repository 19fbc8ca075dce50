//! `handfast fabric`: programs on scripted RDMA devices.

use crate::failure::{Failure, Outcome};
use crate::{help, output};
use clap::{Args, Subcommand};
use handfast_fabric_control::{Process, command, scripted};
use std::ffi::OsString;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Longest wait of one line of a script.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Interval of questions of a waiting line.
const LOOK: Duration = Duration::from_millis(1);
/// Longest pause, in milliseconds.
const PAUSE_MAX_MS: u64 = 60_000;
/// Longest script, in lines.
const LINES_MAX: usize = 10_000;

/// Run programs on scripted RDMA devices
#[derive(Args)]
pub(crate) struct Fabric {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    Run(Run),
}

/// Run a command on scripted RDMA devices
///
/// The command, and every process that it starts, gets RDMA devices without hardware or a kernel
/// module: a library in place of libibverbs, whose devices behave as the driver of a profile and move
/// real bytes between the memory of these processes. A script holds, fails and releases what the
/// devices do. Needs to read the memory of its child processes, as a debugger does.
#[derive(Args)]
#[command(after_long_help = help::FABRIC_RUN)]
struct Run {
    /// Driver whose behaviour the two devices rxe0 and rxe1 have: strict, rxe, mlx5, irdma,
    /// erdma-standard, erdma-compat, erdma-rocev2, siw or iwarp
    #[arg(long, value_name = "PROFILE", default_value = "rxe")]
    profile: String,
    /// The devices instead, as NAME=PROFILE[:OPTION...],...; options are infiniband, ipv6,
    /// grh, numbers_from=N, queue_pairs=N, regions=N, retry_ms=N and lies=FIELD
    #[arg(long, value_name = "LIST", conflicts_with = "profile")]
    devices: Option<String>,
    /// Script to play while the command runs; its lines up to the first `wait` or `pause` are played
    /// before the command starts
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
    /// The scripted library, if it is not in the folder of this program
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
    /// The command and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "CMD"
    )]
    command: Vec<OsString>,
}

/// A line of a script.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    Command(String),
    Pause(Duration),
    Wait { ask: String, answer: String },
}

/// A script, with the numbers of its lines.
type Script = Vec<(usize, String, Line)>;

pub(crate) fn run(arguments: Fabric) -> Outcome {
    let Action::Run(arguments) = arguments.action;
    let mut script = match &arguments.script {
        None => Vec::new(),
        Some(path) => {
            let text = std::fs::read_to_string(path);
            parse(&text.map_err(|error| Failure::file(path, "reading", error))?)?
        }
    };
    let devices = arguments.devices.unwrap_or_else(|| {
        let profile = &arguments.profile;
        format!("rxe0={profile},rxe1={profile}:numbers_from=500")
    });
    let library = arguments.library.map_or_else(scripted, Ok);
    let library = library.map_err(|error| {
        Failure::Usage(format!(
            "{error}; build the package handfast-fabric-verbs, or name it with --library"
        ))
    })?;
    let usage = |error: std::io::Error| Failure::Usage(error.to_string());
    let process = Process::with_library(&devices, &library).map_err(usage)?;
    let process = process.share().map_err(Failure::system("serving the devices"))?;
    let before = script.iter().position(|(_, _, line)| !matches!(line, Line::Command(_)));
    let rest = script.split_off(before.unwrap_or(script.len()));
    play(&script)?;
    let (program, words) = arguments
        .command
        .split_first()
        .ok_or_else(|| Failure::Usage("no command is named".to_owned()))?;
    let mut child = process.program(program.as_ref());
    let mut child = child.args(words).spawn().map_err(Failure::system("starting the command"))?;
    let playing = std::thread::spawn(move || play(&rest));
    let status = child.wait().map_err(Failure::system("waiting for the command"))?;
    if playing.is_finished() {
        playing.join().unwrap_or(Ok(()))?;
    } else {
        output::note(format_args!("warning: the command ended before its script"));
    }
    if status.success() { Ok(()) } else { Err(Failure::Command(status)) }
}

fn parse(text: &str) -> Result<Script, Failure> {
    let mut script = Vec::new();
    for (index, text) in text.lines().enumerate() {
        let text = text.trim();
        let wrong = |why: &str| Failure::Script {
            line: index + 1,
            text: text.to_owned(),
            why: why.to_owned(),
        };
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        if script.len() == LINES_MAX {
            return Err(wrong(&format!("a script has at most {LINES_MAX} lines")));
        }
        let line = match text.split_once(' ') {
            Some(("pause", ms)) => {
                let ms = ms.trim().parse().ok().filter(|ms| *ms <= PAUSE_MAX_MS);
                let ms = ms.ok_or_else(|| wrong("a pause is 0 to 60000 milliseconds"))?;
                Line::Pause(Duration::from_millis(ms))
            }
            Some(("wait", rest)) => {
                let (ask, answer) = rest
                    .split_once(" is ")
                    .ok_or_else(|| wrong("it is not of the form `wait COMMAND is TEXT`"))?;
                Line::Wait { ask: ask.trim().to_owned(), answer: answer.trim().to_owned() }
            }
            _ => Line::Command(text.to_owned()),
        };
        script.push((index + 1, text.to_owned(), line));
    }
    Ok(script)
}

/// Plays lines in order. A wait past its limit, or a command that the devices refuse, ends the script.
fn play(script: &[(usize, String, Line)]) -> Outcome {
    for (number, text, line) in script {
        let failed = |why: String| Failure::Script { line: *number, text: text.clone(), why };
        match line {
            Line::Command(line) => {
                let answer = command(line).map_err(failed)?;
                answer.lines().for_each(|answer| output::note(format_args!("{line}: {answer}")));
            }
            Line::Pause(time) => sleep(*time),
            Line::Wait { ask, answer } => {
                let deadline = Instant::now() + WAIT_MAX;
                loop {
                    let present = command(ask).map_err(failed)?;
                    if present.trim() == answer {
                        break;
                    }
                    if Instant::now() > deadline {
                        let seconds = WAIT_MAX.as_secs();
                        return Err(failed(format!("it was '{present}' for {seconds} s")));
                    }
                    sleep(LOOK);
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of a script keep their numbers, and comments are none.
    #[test]
    fn script_lines_keep_their_numbers() {
        let script = parse("# a race\n\ncut rxe0 rxe1\nwait count rxe0 x is 3\npause 5\n").unwrap();
        let numbers: Vec<_> = script.iter().map(|(number, _, _)| *number).collect();
        assert_eq!(numbers, [3, 4, 5]);
        let wait = Line::Wait { ask: "count rxe0 x".to_owned(), answer: "3".to_owned() };
        assert_eq!(script[1].2, wait);
        assert_eq!(script[2].2, Line::Pause(Duration::from_millis(5)));
    }

    /// A wrong line is named by its number, its text and its cause.
    #[test]
    fn wrong_script_line_is_named() {
        for (text, why) in [
            ("\npause x", "0 to 60000"),
            ("\npause 60001", "0 to 60000"),
            ("\nwait count rxe0 x", "wait COMMAND is TEXT"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.starts_with("line 2 of the script") && error.contains(why), "{error}");
        }
        let long = "cut a b\n".repeat(LINES_MAX + 1);
        assert!(parse(&long).unwrap_err().to_string().contains("at most 10000 lines"));
    }
}
