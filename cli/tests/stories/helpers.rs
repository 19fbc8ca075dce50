//! Servers and clients as processes, none of which outlives its story.

#[cfg(feature = "verbs")]
use handfast::record::RecordOptions;
#[cfg(feature = "verbs")]
use handfast::{Builder, Engine};
use handfast_trace::{TraceReader, replay};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_handfast");
/// Longer than anything here takes on a busy machine; past it a story has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// The same for a process or a condition on one busy processor, where all stories take their turns.
const HANGS_AFTER: Duration = Duration::from_secs(120);
/// Between two looks at a condition.
const LOOK_EVERY: Duration = Duration::from_millis(1);
pub(crate) const MIB: u64 = 1 << 20;
/// Tries of a transfer that a fast machine may end before something interrupts it.
pub(crate) const TRIES_MAX: u32 = 10;
/// The name of recordings, each in a folder of its own.
const TRACE: &str = "run.trace";

/// Prints the reason for skipping a test, past the capture of the test harness.
pub(crate) fn skipped(why: &str) {
    let name = std::thread::current().name().unwrap_or("a story").to_owned();
    // The macros that print would print into the capture.
    std::io::stderr().write_all(format!("skipped: {name}: {why}\n").as_bytes()).unwrap();
}

/// An address whose port is below those that the system gives to connections, so that nothing takes it
/// while its server restarts.
pub(crate) fn free_address(host: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = std::process::id() * 64 + NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 20_000 + (number % 12_000) as u16;
        if TcpListener::bind((host, port)).is_ok() {
            return format!("{host}:{port}");
        }
    }
}

/// Waits until something holds.
#[track_caller]
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < HANGS_AFTER, "it never came true that {what}");
        std::thread::sleep(LOOK_EVERY);
    }
}

/// A child process that is killed and reaped when dropped.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Stops it, and waits until it has stopped.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        until("the process is stopped", || status(self.pid(), "State:").starts_with('T'));
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    #[track_caller]
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let mut ended = None;
        until("the process ends", || {
            ended = self.0.try_wait().unwrap();
            ended.is_some()
        });
        ended.unwrap()
    }

    /// Ends it at once, if it still runs.
    pub(crate) fn kill(&mut self) {
        // Either fails only when it is gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Whether the command is a `handfast` command with a node that does not record yet.
fn has_node(command: &Command) -> bool {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    let words = words.map(|word| word.to_str().unwrap_or(""));
    let mut words = words.skip_while(|word| *word != PROGRAM).skip(1);
    let ours = |word: &str| ["serve", "put", "get", "bench"].contains(&word);
    words.find(|word| !word.starts_with('-')).is_some_and(ours)
        && !words.any(|word| word == "--record")
}

/// The folder of a command's recording, and the check at its end that the recording replays.
pub(crate) struct Recording(Option<TempDir>);

impl Recording {
    /// Makes a command record that has a node of its own, unless it says itself how.
    fn of(command: &mut Command) -> Self {
        if !has_node(command) {
            return Self(None);
        }
        let folder = tempfile::tempdir().unwrap();
        command.arg("--record").arg(folder.path().join(TRACE));
        Self(Some(folder))
    }

    /// The path of the recording, if there is one.
    pub(crate) fn file(&self) -> Option<PathBuf> {
        let file = self.0.as_ref()?.path().join(TRACE);
        file.exists().then_some(file)
    }

    /// A process that was killed may leave half a line behind.
    #[track_caller]
    fn check(&self) {
        let Some(file) = self.file() else { return };
        let bytes = std::fs::read(file).unwrap();
        let reader = TraceReader::new(&*bytes, true);
        let replayed = reader.map_err(Into::into).and_then(|reader| replay(reader, &mut |_| {}));
        if let Err(error) = replayed {
            panic!("the recording does not replay: {error}\n{}", String::from_utf8_lossy(&bytes));
        }
    }
}

/// The end of a transfer that something interrupts. One that succeeds before is tried again.
#[track_caller]
pub(crate) fn interrupted(mut transfer: impl FnMut() -> Ended) -> Ended {
    for _ in 1..TRIES_MAX {
        let ended = transfer();
        if ended.code != Some(0) {
            return ended;
        }
    }
    transfer()
}

/// An engine of a story's own, which records. What it recorded until this goes must replay.
#[cfg(feature = "verbs")]
pub(crate) struct RecordedEngine {
    engine: Engine,
    recording: Recording,
}

#[cfg(feature = "verbs")]
impl RecordedEngine {
    pub(crate) async fn start(builder: Builder) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let builder = builder.record(RecordOptions::new(folder.path().join(TRACE)));
        Self { engine: builder.start().await.unwrap(), recording: Recording(Some(folder)) }
    }
}

#[cfg(feature = "verbs")]
impl std::ops::Deref for RecordedEngine {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
}

#[cfg(feature = "verbs")]
impl Drop for RecordedEngine {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.recording.check();
        }
    }
}

/// `handfast serve`. It also ends with its standard input, should this process be killed.
pub(crate) struct Server {
    pub(crate) process: Process,
    pub(crate) address: String,
    /// The lines that it printed before `ready`.
    pub(crate) lines: Vec<String>,
    /// Bytes of memory in use when it was ready.
    idle_bytes: u64,
    _output: BufReader<ChildStdout>,
    pub(crate) recording: Recording,
}

impl Drop for Server {
    fn drop(&mut self) {
        // A story that has failed has said why.
        if !std::thread::panicking() {
            self.process.kill();
            self.recording.check();
        }
    }
}

impl Server {
    pub(crate) fn start(options: &[&str]) -> Self {
        Self::start_at(&free_address("127.0.0.1"), options)
    }

    pub(crate) fn start_at(listen: &str, options: &[&str]) -> Self {
        let mut command = Command::new(PROGRAM);
        command.args(["serve", "--until-stdin-ends", "--listen", listen]).args(options);
        let has_chosen = options.iter().any(|it| ["--auth", "--open"].contains(it));
        if !listen.starts_with("127.") && !has_chosen {
            command.arg("--open");
        }
        Self::spawn(command)
    }

    pub(crate) fn spawn(mut command: Command) -> Self {
        let recording = Recording::of(&mut command);
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut process = Process(spawned.unwrap());
        let mut output = BufReader::new(process.0.stdout.take().unwrap());
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            assert_ne!(output.read_line(&mut line).unwrap(), 0, "the server ended: {lines:?}");
            match line.trim_end() {
                "ready" => break,
                line => lines.push(line.to_owned()),
            }
        }
        let address = lines[0].split(' ').nth(2).unwrap().to_owned();
        let idle_bytes = memory_bytes(process.pid());
        Self { process, address, lines, idle_bytes, _output: output, recording }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub(crate) fn at(&self, place: &str) -> String {
        format!("{}/{place}", self.address)
    }

    /// Kills it and starts another at the same port.
    pub(crate) fn restart(self, options: &[&str]) -> Self {
        let address = self.address.clone();
        drop(self);
        Self::start_at(&address, options)
    }

    /// Waits until its first put has moved this many bytes into its memory, or has ended.
    #[track_caller]
    pub(crate) fn until_grown(&self, bytes: u64, put: &mut Client) {
        let expected = self.idle_bytes + bytes;
        put.until("bytes arrive in the server's memory", || memory_bytes(self.pid()) >= expected);
    }
}

/// A running `handfast` whose output is collected.
pub(crate) struct Client {
    pub(crate) process: Process,
    started: Instant,
    output: JoinHandle<String>,
    errors: JoinHandle<String>,
    recording: Recording,
}

/// The outcome of a command.
#[derive(Debug)]
pub(crate) struct Ended {
    /// `None` if a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) output: String,
    pub(crate) errors: String,
    pub(crate) took: Duration,
    /// The moment of its end.
    pub(crate) at: Instant,
}

impl Client {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(PROGRAM);
        command.args(arguments);
        Self::spawn(command)
    }

    pub(crate) fn spawn(mut command: Command) -> Self {
        let recording = Recording::of(&mut command);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let started = Instant::now();
        let mut process = Process(command.spawn().unwrap());
        let output = collect(process.0.stdout.take().unwrap());
        let errors = collect(process.0.stderr.take().unwrap());
        Self { process, started, output, errors, recording }
    }

    /// Waits until something holds, or the client has ended.
    #[track_caller]
    pub(crate) fn until(&mut self, what: &str, mut holds: impl FnMut() -> bool) {
        until(what, || holds() || !self.process.is_running());
    }

    #[track_caller]
    pub(crate) fn end(mut self) -> Ended {
        let code = self.process.wait().code();
        let at = Instant::now();
        let (output, errors) = (self.output.join().unwrap(), self.errors.join().unwrap());
        self.recording.check();
        Ended { code, output, errors, took: at - self.started, at }
    }
}

fn collect(mut from: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// A processor that this process may use.
pub(crate) fn a_processor() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    list.trim().split(['-', ',']).next().unwrap().to_owned()
}

/// Runs `handfast` to its end.
#[track_caller]
pub(crate) fn run(arguments: &[&str]) -> Ended {
    Client::start(arguments).end()
}

/// Runs a command that must succeed and say nothing on standard error.
#[track_caller]
pub(crate) fn succeed(arguments: &[&str]) -> String {
    let ended = run(arguments);
    assert_eq!((ended.code, &*ended.messages()), (Some(0), ""), "{arguments:?}: {ended:?}");
    ended.output
}

/// Fails unless a text has all of `parts`.
#[track_caller]
pub(crate) fn contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "'{part}' is missing in: {text}");
    }
}

impl Ended {
    /// Standard error without the lines of progress, which a slow machine shows.
    pub(crate) fn messages(&self) -> String {
        let lines = self.errors.split_inclusive('\n');
        lines.filter(|line| !line.ends_with(" %)\n")).collect()
    }

    /// Fails unless it ended with success.
    #[track_caller]
    pub(crate) fn done(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }

    /// Fails unless it ended with the code, one message on standard error with all of `parts`, and
    /// no panic.
    #[track_caller]
    pub(crate) fn failed(self, code: i32, parts: &[&str]) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert!(self.errors.contains("error: "), "{self:?}");
        assert!(!self.errors.contains("panicked"), "{self:?}");
        contains(&self.errors, parts);
        self
    }
}

/// A folder that is removed with the story.
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    pub(crate) fn name(&self, name: &str) -> String {
        self.join(name).to_str().unwrap().to_owned()
    }

    /// A file whose bytes differ from place to place.
    pub(crate) fn patterned(&self, name: &str, bytes: u64, seed: u8) -> String {
        let content: Vec<u8> = (0..bytes).map(|i| (i * 7 + i / 251) as u8 ^ seed).collect();
        std::fs::write(self.join(name), content).unwrap();
        self.name(name)
    }

    /// A file of zeros that takes no room on the disk.
    pub(crate) fn sparse(&self, name: &str, bytes: u64) -> String {
        File::create(self.join(name)).unwrap().set_len(bytes).unwrap();
        self.name(name)
    }

    pub(crate) fn read(&self, name: &str, offset: u64, bytes: usize) -> Vec<u8> {
        let mut content = vec![0; bytes];
        File::open(self.join(name)).unwrap().read_exact_at(&mut content, offset).unwrap();
        content
    }

    /// Names of all that is in it, hidden or not.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path()).unwrap();
        let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
        let mut names: Vec<_> =
            entries.map(|entry| name(entry).to_str().unwrap().to_owned()).collect();
        names.sort();
        names
    }
}

/// A line of `/proc/PID/status`, without its key.
pub(crate) fn status(pid: u32, key: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
    line.trim().to_owned()
}

/// Resident memory of a process.
pub(crate) fn memory_bytes(pid: u32) -> u64 {
    let kib = status(pid, "VmRSS:");
    kib.split(' ').next().unwrap().parse::<u64>().unwrap() * 1024
}

/// Open descriptors of a process.
pub(crate) fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// This test, started again as a child process, if `key` is set.
pub(crate) fn again(story: &str, key: &str, value: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", story, "--nocapture", "--test-threads=1"]).env(key, value);
    command
}
