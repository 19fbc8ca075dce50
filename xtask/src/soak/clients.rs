//! Clients: each writes a piece of a server's memory, reads it again, and compares.

use super::nodes::{Fleet, SEGMENT_BYTES, Server};
use super::{CLIENTS, Random, Summary};
use anyhow::Result;
use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

/// Pieces of the memory, one for each client.
const PIECE_BYTES: u64 = SEGMENT_BYTES / CLIENTS as u64 / 4_096 * 4_096;
/// Longer than a command with these options may take, on a busy machine.
const HANGS_AFTER: Duration = Duration::from_secs(120);
const OPTIONS: [&str; 4] = ["--timeout", "5s", "--retries", "8"];
/// Bytes of messages that are kept of a command, its last.
const ERRORS_BYTES_MAX: usize = 16 << 10;
/// Mounts a disk of one page at a place that this command alone sees, and runs a program. The recording
/// of a whole transfer is longer. The program ends with its shell.
const ON_FULL_DISK: &str = "mount -t tmpfs -o size=4k,mode=700 full \"$0\" || exit; \
    setpriv --pdeathsig KILL \"$@\"; code=$?; \
    test -z \"$(find \"$0\" -type f -size -$(getconf PAGE_SIZE)c)\" || echo a page was enough >&2; exit $code";
/// The message of a command whose record has no room, whether it fails or goes on without.
const NO_ROOM: &str = "No space left on device";
/// A recording fits into a page if the peer is stopped before the lane is closed.
const WAS_ENOUGH: &str = "a page was enough";

/// The servers, and the summary of a run.
pub(super) struct Work<'a> {
    pub(super) fleet: &'a Fleet,
    pub(super) summary: &'a Mutex<Summary>,
}

/// A client, one command after the other.
pub(super) struct Client {
    number: usize,
    random: Random,
    file: PathBuf,
    copy: PathBuf,
    disk: PathBuf,
}

/// The end of a command.
enum End {
    Done,
    /// It has said that there is no room for its record, and failed or gone on.
    Full {
        is_done: bool,
    },
    /// It has succeeded, and its record fits.
    Fits,
    Failed(String),
    Crashed(String),
    Hung,
    /// By this client itself.
    Killed,
}

/// A fault of a command while it runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Harm {
    None,
    Kill(Duration),
    FullDisk,
}

impl Client {
    pub(super) fn new(folder: &Path, seed: u64, number: usize) -> Result<Self> {
        let folder = folder.join(format!("client-{number}"));
        fs::create_dir_all(&folder)?;
        let random = Random::of(seed, 1 + number as u64);
        let [file, copy, disk] = ["file", "copy", "disk"].map(|name| folder.join(name));
        fs::create_dir_all(&disk)?;
        Ok(Self { number, random, file, copy, disk })
    }

    /// Writes and reads once.
    pub(super) fn step(&mut self, work: &Work<'_>) {
        let servers = &work.fleet.servers;
        let server = &servers[self.random.below(servers.len() as u64) as usize];
        let length = 1 + self.random.below(PIECE_BYTES);
        let content = self.content(length);
        if let Err(error) = fs::write(&self.file, &content) {
            work.note(|it| it.crashed.push(format!("no file of a client: {error}")));
            return;
        }
        let place = format!("{}/m:{}", server.place, self.number as u64 * PIECE_BYTES);
        let kills = server.kills.load(Ordering::SeqCst);
        let harm = match self.random.below(12) {
            0 => Harm::Kill(self.random.millis(1, 60)),
            1 if work.fleet.has_disks => Harm::FullDisk,
            _ => Harm::None,
        };
        let file = self.file.to_string_lossy().into_owned();
        if !self.command(work, server, harm, &["put", &file, &place]) {
            return;
        }
        work.note(|it| {
            it.puts += 1;
            it.bytes += length;
        });
        let copy = self.copy.to_string_lossy().into_owned();
        let place = format!("{place},{length}");
        if !self.command(work, server, Harm::None, &["get", &place, &copy]) {
            return;
        }
        let is_equal = fs::read(&self.copy).is_ok_and(|copy| copy == content);
        let was_killed = server.kills.load(Ordering::SeqCst) != kills;
        work.note(|it| match (is_equal, was_killed) {
            (true, _) => {
                it.gets += 1;
                it.bytes += length;
            }
            (false, true) => it.unjudged += 1,
            (false, false) => {
                it.lost.push(format!("{length} bytes of {place}, the server {}", server.name));
            }
        });
    }

    fn content(&mut self, length: u64) -> Vec<u8> {
        let mut content: Vec<u8> = Vec::new();
        while (content.len() as u64) < length {
            content.extend(self.random.number().to_le_bytes());
        }
        content.truncate(length as usize);
        content
    }

    /// Runs a command, and returns whether it succeeded.
    fn command(&self, work: &Work<'_>, server: &Server, harm: Harm, words: &[&str]) -> bool {
        let faults = server.faults.load(Ordering::SeqCst);
        let mut command = match harm {
            Harm::FullDisk => on_full_disk(&self.disk, &work.fleet.program),
            _ => Command::new(&work.fleet.program),
        };
        command.args(words).args(&server.options).args(OPTIONS);
        if harm == Harm::FullDisk {
            command.arg("--record").arg(self.disk.join("record"));
        }
        let end = ended(command, harm);
        // Odd while a fault lasts.
        let is_quiet = faults.is_multiple_of(2) && server.faults.load(Ordering::SeqCst) == faults;
        let what = || format!("{} with the server {}", words.join(" "), server.name);
        let mut is_done = false;
        work.note(|it| match end {
            End::Done if harm == Harm::FullDisk => {
                is_done = true;
                it.unjustified.push(format!("{}: no word of the full disk", what()));
            }
            End::Done | End::Fits => is_done = true,
            End::Killed => it.clients_killed += 1,
            End::Hung => it.hung.push(what()),
            End::Crashed(why) => it.crashed.push(format!("{}: {why}", what())),
            End::Full { is_done: done } => {
                it.full_disks += 1;
                is_done = done;
            }
            End::Failed(why) if is_quiet => it.unjustified.push(format!("{}: {why}", what())),
            End::Failed(_) => it.failed += 1,
        });
        is_done
    }
}

impl Work<'_> {
    fn note(&self, change: impl FnOnce(&mut Summary)) {
        change(&mut self.summary.lock().expect("no thread panics"));
    }
}

/// A program on whose disk there is room for a page alone.
fn on_full_disk(disk: &Path, program: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", ON_FULL_DISK]);
    command.arg(disk).arg(program);
    command
}

/// Whether this user may mount disks of their own.
pub(super) fn has_disks(folder: &Path) -> bool {
    let mut command = on_full_disk(folder, Path::new("true"));
    command.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Runs a command to its end.
fn ended(mut command: Command, harm: Harm) -> End {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return End::Crashed(error.to_string()),
    };
    // While it runs, since a full pipe would stop it.
    let errors = child.stderr.take().map(|errors| thread::spawn(move || last_of(errors)));
    let begun = Instant::now();
    if let Harm::Kill(after) = harm {
        thread::sleep(after);
        let _ = child.kill();
    }
    while child.try_wait().is_ok_and(|status| status.is_none()) {
        if begun.elapsed() > HANGS_AFTER {
            let _ = child.kill();
            let _ = child.wait();
            return End::Hung;
        }
        thread::sleep(Duration::from_millis(2));
    }
    let errors = errors.and_then(|errors| errors.join().ok()).unwrap_or_default();
    match child.wait() {
        Ok(status) => judged(status, &String::from_utf8_lossy(&errors), harm),
        Err(error) => End::Crashed(error.to_string()),
    }
}

/// Reads to the end, and returns the last bytes.
fn last_of(mut stream: impl Read) -> Vec<u8> {
    let (mut last, mut chunk) = (Vec::new(), [0; ERRORS_BYTES_MAX]);
    while let Ok(read @ 1..) = stream.read(&mut chunk) {
        last.extend_from_slice(&chunk[..read]);
        last.drain(..last.len().saturating_sub(ERRORS_BYTES_MAX));
    }
    last
}

fn judged(status: ExitStatus, text: &str, harm: Harm) -> End {
    let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no message");
    match (status.code(), status.signal()) {
        (Some(code @ 0..=9), _) if harm == Harm::FullDisk && text.contains(NO_ROOM) => {
            End::Full { is_done: code == 0 }
        }
        (Some(0), _) if harm == Harm::FullDisk && text.contains(WAS_ENOUGH) => End::Fits,
        (Some(0), _) => End::Done,
        (None, Some(9)) if matches!(harm, Harm::Kill(_)) => End::Killed,
        // The code of a panic, and those of signals from a shell.
        (Some(101 | 128..), _) | (None, _) => End::Crashed(format!("{status}: {last}")),
        // Each error says something.
        (Some(code), _) if text.trim().is_empty() => {
            End::Crashed(format!("no message, code {code}"))
        }
        (Some(code), _) => End::Failed(format!("code {code}: {last}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(script: &str, harm: Harm) -> End {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        ended(command, harm)
    }

    #[test]
    fn ends_of_commands_are_told_apart() {
        assert!(matches!(of("exit 0", Harm::None), End::Done));
        assert!(
            matches!(of("echo no >&2; exit 6", Harm::None), End::Failed(why) if why == "code 6: no")
        );
        assert!(matches!(of("exit 6", Harm::None), End::Crashed(_)));
        assert!(matches!(of("echo panicked >&2; exit 101", Harm::None), End::Crashed(_)));
        assert!(matches!(of("kill -SEGV $$", Harm::None), End::Crashed(_)));
        assert!(matches!(of("kill -KILL $$", Harm::None), End::Crashed(_)));
        for code in [0, 5] {
            let script = format!("echo 'No space left on device' >&2; exit {code}");
            let End::Full { is_done } = of(&script, Harm::FullDisk) else { panic!("it is full") };
            assert_eq!(is_done, code == 0);
        }
        assert!(matches!(of("exit 0", Harm::FullDisk), End::Done));
        assert!(matches!(of("echo reset >&2; exit 6", Harm::FullDisk), End::Failed(_)));
        // Far more than a pipe holds.
        let chatty = "head -c 1000000 /dev/zero >&2; echo last >&2; exit 6";
        assert!(matches!(of(chatty, Harm::None), End::Failed(why) if why.ends_with("last")));
        let killed = of("exec sleep 60", Harm::Kill(Duration::from_millis(1)));
        assert!(matches!(killed, End::Killed));
    }

    /// A command on a full disk says so; without leave to mount one nothing is tried.
    #[test]
    fn full_disk_has_room_for_a_page_alone() {
        let folder = tempfile::tempdir().expect("there is room");
        if !has_disks(folder.path()) {
            println!("skipped: this user may mount no disk");
            return;
        }
        let write = |bytes: usize| {
            let mut command = on_full_disk(folder.path(), Path::new("sh"));
            let script = format!("head -c {bytes} /dev/zero > \"$0\"");
            command.args(["-c", &script]).arg(folder.path().join("file")).env("LC_ALL", "C");
            ended(command, Harm::FullDisk)
        };
        assert!(matches!(write(4_095), End::Fits));
        assert!(matches!(write(rustix::param::page_size()), End::Done));
        // More than the largest page of a kernel.
        assert!(matches!(write((64 << 10) + 1), End::Full { is_done: false }));
    }
}
