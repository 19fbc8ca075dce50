//! `cargo xtask demo`: the main job before one's eyes, on real processes, files and sockets.

use crate::command::cargo;
use crate::project::Project;
use anyhow::{Context, Result, bail, ensure};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The file that is put and got back.
const FILE_BYTES: u64 = 256 << 20;
/// The larger file, sparse, during whose transfer the serving process is killed.
const LONG_FILE_BYTES: u64 = 2 << 30;
/// From the start of the long transfer to the kill: enough for a lane and its first bytes, and a
/// fraction of what two gibibytes take.
const KILL_AFTER: Duration = Duration::from_millis(150);
/// The pause before the killed process is started again, to let the error be seen first.
const RESTART_AFTER: Duration = Duration::from_millis(1500);
/// Recording of each process.
const KILLED: &str = "killed.trace";
const RESTARTED: &str = "restarted.trace";
const CLIENT: &str = "client.trace";
/// In-flight transfers must have ended by then (a promise of the engine, not of this demo).
const ERROR_WITHIN: Duration = Duration::from_secs(1);

/// Show the main job: two processes, a real file, a killed server
///
/// Puts a file of 256 MiB into another process's memory, gets it back and compares. Then kills the
/// serving process during a transfer, restarts it under the same name, and shows the client's error
/// and its next transfer, which succeeds without a client restart. All three processes record, and
/// each recording is replayed. Needs about 5 GiB of disk and memory in all, and half a minute after
/// the build.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Folder of the files, which are removed at the end [default: cargo's target folder]
    #[arg(long)]
    folder: Option<PathBuf>,
}

pub(crate) fn run(project: Project, arguments: &Arguments) -> Result<bool> {
    println!("building handfast");
    let built = cargo(project.root(), ["build", "--quiet", "--release", "-p", "handfast-cli"])
        .status()
        .context("cargo build")?;
    ensure!(built.success(), "handfast does not build: {built}");
    let program = project.target().join("release/handfast");
    let base = arguments.folder.clone().unwrap_or_else(|| project.scratch());
    let folder = base.join(format!("demo-{}", std::process::id()));
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let shown = Demo { program, folder: folder.clone() }.show();
    fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))?;
    shown?;
    println!("\nok: everything above was seen to hold");
    Ok(true)
}

struct Demo {
    program: PathBuf,
    folder: PathBuf,
}

/// A serving process, killed when dropped.
struct Server {
    child: Child,
    _output: BufReader<ChildStdout>,
    address: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        // Either call fails only when the process is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Demo {
    fn show(&self) -> Result<()> {
        let original = self.folder.join("original");
        let copy = self.folder.join("copy");
        fill(&original)?;
        println!("\n1. one process serves memory, another puts a file of 256 MiB and gets it back");
        let server = self.serve("127.0.0.1:0", KILLED)?;
        let segment = format!("{}/memory", server.address);
        let length = format!("{segment}:0,{FILE_BYTES}");
        self.client(&["put", text(&original)?, &segment])?;
        self.client(&["get", &length, text(&copy)?])?;
        compare(&original, &copy)?;
        println!("   the two files are equal, byte by byte");
        self.killed_while_a_transfer_runs(server, &segment, &original)
    }

    fn killed_while_a_transfer_runs(
        &self,
        server: Server,
        segment: &str,
        original: &Path,
    ) -> Result<()> {
        println!("\n2. the serving process is killed while a transfer runs, and started again");
        let long = self.folder.join("long");
        let sparse = File::create(&long).and_then(|file| file.set_len(LONG_FILE_BYTES));
        sparse.with_context(|| format!("making {}", long.display()))?;
        let address = server.address.clone();
        let recording = self.folder.join(CLIENT);
        let record = ["--retries", "20", "--record", text(&recording)?];
        let arguments = [&["put", text(&long)?, segment][..], &record].concat();
        println!("   $ handfast {}", shown(&arguments));
        let mut client = Command::new(&self.program)
            .args(&arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("starting the client")?;
        let errors = client.stderr.take().context("the client's standard error")?;
        let errors = thread::spawn(move || {
            let mut first = None;
            for line in BufReader::new(errors).lines().map_while(Result::ok) {
                first.get_or_insert_with(Instant::now);
                println!("   {line}");
            }
            first
        });
        thread::sleep(KILL_AFTER);
        ensure!(
            client.try_wait()?.is_none(),
            "the transfer was over before the kill: this machine is too fast for the demo's file"
        );
        let killed = Instant::now();
        // SIGKILL: the process has no chance to say goodbye.
        drop(server);
        println!("   [the serving process was killed with SIGKILL]");
        thread::sleep(RESTART_AFTER);
        let server = self.serve(&address, RESTARTED)?;
        println!("   [it was started again, under the same name, with fresh memory]");
        let output = client.wait_with_output().context("waiting for the client")?;
        print_indented(&output.stdout);
        let reported = errors.join().ok().flatten().context("the client reported no failure")?;
        ensure!(output.status.success(), "the client did not recover: {}", output.status);
        let after = reported.saturating_duration_since(killed);
        ensure!(after <= ERROR_WITHIN, "the failure was reported {} ms late", after.as_millis());
        println!("   the failure was reported {} ms after the kill", after.as_millis());

        println!("\n3. the memory of the new process serves on");
        let copy = self.folder.join("copy of the copy");
        let length = format!("{segment}:0,{FILE_BYTES}");
        self.client(&["put", text(original)?, segment])?;
        self.client(&["get", &length, text(&copy)?])?;
        compare(original, &copy)?;
        println!("   the two files are equal, byte by byte");
        drop(server);

        println!(
            "\n4. what the three recorded replays: the killed one, the new one, and the client"
        );
        for recording in [KILLED, RESTARTED, CLIENT] {
            // A killed process may leave half a line behind.
            let recording = self.folder.join(recording);
            self.client(&["sim", "replay", text(&recording)?, "--allow-cut"])?;
        }
        Ok(())
    }

    fn serve(&self, listen: &str, recording: &str) -> Result<Server> {
        let memory = format!("{}", LONG_FILE_BYTES);
        let recording = self.folder.join(recording);
        let serve = ["serve", "--listen", listen, "--name", "demo", "--memory", &memory];
        let arguments = [&serve[..], &["--record", text(&recording)?]].concat();
        println!("   $ handfast {} &", shown(&arguments));
        let mut child = Command::new(&self.program)
            .args(&arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting the serving process")?;
        let output = child.stdout.take().context("the serving process's output")?;
        let mut output = BufReader::new(output);
        let mut address = String::new();
        loop {
            let mut line = String::new();
            if output.read_line(&mut line)? == 0 {
                bail!("the serving process ended: {}", child.wait()?);
            }
            if let Some(rest) = line.strip_prefix("serving at ") {
                address = rest.split(' ').next().unwrap_or_default().to_owned();
            }
            if line.trim_end() == "ready" {
                return Ok(Server { child, _output: output, address });
            }
        }
    }

    /// Runs a client to its end and shows what it prints.
    fn client(&self, arguments: &[&str]) -> Result<()> {
        println!("   $ handfast {}", shown(arguments));
        let output = Command::new(&self.program)
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .context("starting the client")?;
        print_indented(&output.stdout);
        print_indented(&output.stderr);
        ensure!(output.status.success(), "the client failed: {}", output.status);
        Ok(())
    }
}

fn print_indented(output: &[u8]) {
    for line in String::from_utf8_lossy(output).lines() {
        println!("   {line}");
    }
}

/// Arguments as one would type them, files by their last name.
fn shown(arguments: &[&str]) -> String {
    let short = |argument: &&str| match Path::new(argument).file_name().and_then(|n| n.to_str()) {
        Some(name) if Path::new(argument).is_absolute() => name.replace(' ', "-"),
        _ => (*argument).to_owned(),
    };
    arguments.iter().map(short).collect::<Vec<_>>().join(" ")
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))
}

/// Fills a file with bytes that repeat nowhere near: a linear congruential generator's (the
/// constants are Knuth's for 64 bits).
fn fill(path: &Path) -> Result<()> {
    let mut file = std::io::BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    for _ in 0..FILE_BYTES / 8 {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        file.write_all(&state.to_le_bytes())?;
    }
    file.flush().with_context(|| format!("writing {}", path.display()))
}

fn compare(one: &Path, other: &Path) -> Result<()> {
    let open = |path: &Path| File::open(path).map(|file| BufReader::with_capacity(1 << 20, file));
    let (mut left, mut right) = (open(one)?, open(other)?);
    loop {
        let (a, b) = (left.fill_buf()?, right.fill_buf()?);
        let length = a.len().min(b.len());
        ensure!(a[..length] == b[..length], "the two files differ");
        ensure!(a.is_empty() == b.is_empty(), "one file is longer than the other");
        if length == 0 {
            return Ok(());
        }
        left.consume(length);
        right.consume(length);
    }
}
