//! A rolling upgrade of real processes: nodes of an earlier program restart one after the other as nodes
//! of this one, while clients of both programs write and read, and every transfer is verified.

use crate::project::Project;
use crate::report::{Outcome, as_skipped, of_findings, skipped};
use crate::soak::nodes::{Process, free_port, spawn};
use crate::soak::{Random, build};
use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The commit of the earlier program.
const EARLIER: &str = "109a7a6564f5f7c6c799e72c4df46d16a60d9ebd";
const NODES: usize = 8;
const CLIENTS: usize = 4;
const SEGMENT_BYTES: u64 = 1 << 20;
/// Bytes of the memory of each node that belong to one client.
const PIECE_BYTES: u64 = SEGMENT_BYTES / CLIENTS as u64;
/// Time for a run by hand, its builds included.
const BUILD_BUDGET: Duration = Duration::from_secs(3_600);
const READY_WITHIN: Duration = Duration::from_secs(60);
/// Time for a node to end by itself.
const ENDS_WITHIN: Duration = Duration::from_secs(30);
/// Longer than a command with [`OPTIONS`] takes, on a busy machine.
const HANGS_AFTER: Duration = Duration::from_secs(120);
const OPTIONS: [&str; 6] = ["--transport", "tcp", "--timeout", "5s", "--retries", "8"];
/// Verified transfers between two restarts.
const TRANSFERS_BETWEEN: u64 = 12;

/// The programs: the earlier one, and this one.
type Programs = [PathBuf; 2];

/// A node, which restarts at its address.
struct Node {
    address: String,
    process: Mutex<Option<Process>>,
    /// Beginnings and ends of restarts: odd while one is under way.
    restarts: AtomicU64,
}

#[derive(Default)]
struct Counts {
    /// Verified transfers, by the program of the client.
    verified: [AtomicU64; 2],
    /// Failures during a restart, and reads of memory that a restart has cleared.
    excused: AtomicU64,
    findings: Mutex<Vec<String>>,
}

impl Counts {
    fn find(&self, text: String) {
        self.findings.lock().expect("no thread panics").push(text);
    }

    fn all(&self) -> u64 {
        self.verified.iter().map(|count| count.load(Ordering::SeqCst)).sum()
    }
}

/// Restart eight nodes of an earlier program one after the other as nodes of this one
///
/// Clients of both programs write and read meanwhile, and every transfer is verified. Half of the nodes are
/// killed. The earlier program is that of a commit, built below cargo's target folder.
///
/// Exit code: 0 if every transfer was verified, or met the restart of its node; 1 otherwise.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A built earlier program, in place of building one
    #[arg(long, value_name = "PATH")]
    earlier: Option<PathBuf>,
    /// A built program, in place of building one
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
}

pub(crate) fn run(project: &Project, arguments: &Arguments) -> Result<bool> {
    let deadline = Instant::now() + BUILD_BUDGET;
    let given = |program: &PathBuf| program.canonicalize().context("the program");
    let earlier = match &arguments.earlier {
        Some(program) => given(program)?,
        None => earlier(project, deadline)?,
    };
    let program = match &arguments.program {
        Some(program) => given(program)?,
        None => build(project, false)?,
    };
    anstream::println!("{}", rolling(project, [earlier, program], deadline)?);
    Ok(true)
}

/// Builds both programs, and restarts each node once.
pub(crate) fn step(project: &Project, deadline: Instant) -> Outcome {
    let earlier = earlier(project, deadline)?;
    rolling(project, [earlier, build(project, false)?], deadline)
}

fn rolling(project: &Project, programs: Programs, deadline: Instant) -> Outcome {
    let folder = project.scratch().join("upgrade");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder)?;
    let nodes = (0..NODES).map(|number| start(&programs[0], &folder, number));
    let nodes: Vec<Node> = nodes.collect::<Result<_>>().context("the earlier program")?;
    let (counts, is_over) = (Counts::default(), AtomicBool::new(false));
    thread::scope(|scope| {
        let (counts, nodes, programs) = (&counts, &nodes, &programs);
        for number in 0..CLIENTS {
            let (folder, is_over) = (folder.join(format!("client-{number}")), &is_over);
            scope.spawn(move || {
                let client = Client { number, folder, programs, nodes, counts };
                if let Err(error) = client.run(is_over) {
                    counts.find(format!("client {number}: {error:#}"));
                }
            });
        }
        for (number, node) in nodes.iter().enumerate() {
            if !wait_for(counts, TRANSFERS_BETWEEN, deadline) {
                break;
            }
            // Every other node is killed.
            let signal = if number % 2 == 0 { Signal::TERM } else { Signal::KILL };
            if let Err(error) = node.restart(&programs[1], &folder, number, signal) {
                counts.find(format!("node {number}: {error:#}"));
            }
        }
        if Instant::now() <= deadline {
            wait_for(counts, TRANSFERS_BETWEEN, deadline);
        }
        is_over.store(true, Ordering::SeqCst);
    });
    let [by_earlier, by_this] = counts.verified.map(AtomicU64::into_inner);
    let excused = counts.excused.into_inner();
    let mut findings = counts.findings.into_inner().expect("no thread panics");
    for (count, program) in [(by_earlier, "the earlier program"), (by_this, "this program")] {
        if count == 0 {
            findings.push(format!("no transfer of a client of {program} was verified"));
        }
    }
    let note = format!(
        "{NODES} nodes restarted in turn; {by_earlier} transfers of the earlier program and \
         {by_this} of this one verified, {excused} met a restart"
    );
    of_findings(&findings, note)
}

/// Waits until clients have verified `more` transfers, or found anything. Returns false past the deadline.
fn wait_for(counts: &Counts, more: u64, deadline: Instant) -> bool {
    let enough = counts.all() + more;
    let has_findings = || !counts.findings.lock().expect("no thread panics").is_empty();
    while counts.all() < enough && !has_findings() {
        if Instant::now() > deadline {
            counts.find("transfers are too slow".to_owned());
            return false;
        }
        thread::sleep(Duration::from_millis(20));
    }
    true
}

/// Exports and builds the earlier program below cargo's target folder.
fn earlier(project: &Project, deadline: Instant) -> Result<PathBuf> {
    let git = |words: &[&str]| {
        let mut git = Command::new("git");
        git.current_dir(project.root()).args(words).stderr(Stdio::null());
        git
    };
    let has_commit = git(&["cat-file", "-e", &format!("{EARLIER}^{{commit}}")]).status();
    if !has_commit.is_ok_and(|status| status.success()) {
        return Err(skipped(format!("the clone is shallow: it has no commit {}", &EARLIER[..7])));
    }
    let folder = project.target().join("upgrade");
    let (tree, built) = (folder.join(&EARLIER[..12]), folder.join("target"));
    if !tree.exists() {
        let (archive, unfinished) = (folder.join("tree.tar"), folder.join("tree.new"));
        let _ = fs::remove_dir_all(&unfinished);
        fs::create_dir_all(&unfinished)?;
        let exported = git(&["archive", "--output"]).arg(&archive).arg(EARLIER).status()?;
        ensure!(exported.success(), "git archive: {exported}");
        let mut tar = Command::new("tar");
        let unpacked = tar.arg("xf").arg(&archive).arg("-C").arg(&unfinished).status()?;
        ensure!(unpacked.success(), "tar: {unpacked}");
        fs::remove_file(&archive)?;
        // A tree of this name is whole.
        fs::rename(&unfinished, &tree)?;
    }
    let mut cargo = crate::command::cargo(&tree, ["build", "--locked", "-p", "handfast-cli"]);
    cargo.env("CARGO_TARGET_DIR", &built).env("CARGO_INCREMENTAL", "0");
    // Its dependencies are of other versions, which a machine without a network lacks.
    let mut fetch = crate::command::cargo(&tree, ["fetch", "--locked"]);
    fetch.env("CARGO_TARGET_DIR", &built);
    project.run(fetch, "upgrade-fetch", deadline).map_err(as_skipped)?;
    project.run(cargo, "upgrade-build", deadline)?;
    let program = built.join("debug/handfast");
    ensure!(program.exists(), "there is no {}", program.display());
    Ok(program)
}

fn start(program: &Path, folder: &Path, number: usize) -> Result<Node> {
    let address = format!("127.0.0.1:{}", free_port());
    let process = Mutex::new(Some(serve(program, folder, number, &address)?));
    Ok(Node { address, process, restarts: AtomicU64::new(0) })
}

fn serve(program: &Path, folder: &Path, number: usize, address: &str) -> Result<Process> {
    let mut command = Command::new(program);
    command.args(["serve", "--listen", address, "--transport", "tcp"]);
    command.args(["--memory", &format!("m={SEGMENT_BYTES}")]);
    spawn(&mut command, &folder.join(format!("node-{number}.log")), READY_WITHIN)
}

impl Node {
    /// Ends the process, and starts one of another program in its place.
    fn restart(&self, program: &Path, folder: &Path, number: usize, by: Signal) -> Result<()> {
        self.restarts.fetch_add(1, Ordering::SeqCst);
        let mut process = self.process.lock().expect("no thread panics");
        if let Some(mut running) = process.take() {
            running.signal(by)?;
            ensure!(wait(&mut running.0, ENDS_WITHIN)?, "it does not end");
        }
        *process = Some(serve(program, folder, number, &self.address)?);
        self.restarts.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

/// Waits for the end of a process; returns false if it goes on.
fn wait(child: &mut Child, limit: Duration) -> Result<bool> {
    let until = Instant::now() + limit;
    while child.try_wait()?.is_none() {
        if Instant::now() > until {
            return Ok(false);
        }
        thread::sleep(Duration::from_millis(2));
    }
    Ok(true)
}

/// A client: each of its commands is a process of one program or the other.
struct Client<'a> {
    number: usize,
    folder: PathBuf,
    programs: &'a Programs,
    nodes: &'a [Node],
    counts: &'a Counts,
}

impl Client<'_> {
    fn run(&self, is_over: &AtomicBool) -> Result<()> {
        fs::create_dir_all(&self.folder)?;
        let mut random = Random::of(self.number as u64, 7);
        while !is_over.load(Ordering::SeqCst) {
            let node = random.below(self.nodes.len() as u64) as usize;
            self.step(node, &mut random)?;
        }
        Ok(())
    }

    /// Writes a piece of a node's memory with one program, reads it with one, and compares.
    fn step(&self, number: usize, random: &mut Random) -> Result<()> {
        let node = &self.nodes[number];
        let [file, copy] = ["file", "copy"].map(|name| self.folder.join(name));
        let length = 1 + random.below(PIECE_BYTES);
        let content: Vec<u8> = (0..length).map(|_| random.number() as u8).collect();
        fs::write(&file, &content)?;
        let place = format!("{}/m:{}", node.address, self.number as u64 * PIECE_BYTES);
        let restarts = node.restarts.load(Ordering::SeqCst);
        let is_quiet =
            || restarts.is_multiple_of(2) && node.restarts.load(Ordering::SeqCst) == restarts;
        let [writer, reader] = [(); 2].map(|()| random.below(2) as usize);
        let file_text = file.to_string_lossy().into_owned();
        let copy_text = copy.to_string_lossy().into_owned();
        let part = format!("{place},{length}");
        let commands =
            [(writer, ["put", &*file_text, &*place]), (reader, ["get", &*part, &*copy_text])];
        for (program, words) in commands {
            if let Err(error) = self.command(program, words) {
                match is_quiet() {
                    true => self.counts.find(format!("{} of node {number}: {error:#}", words[0])),
                    false => _ = self.counts.excused.fetch_add(1, Ordering::SeqCst),
                }
                return Ok(());
            }
        }
        match (fs::read(&copy)? == content, is_quiet()) {
            (true, _) => {
                for program in [writer, reader] {
                    self.counts.verified[program].fetch_add(1, Ordering::SeqCst);
                }
            }
            (false, false) => _ = self.counts.excused.fetch_add(1, Ordering::SeqCst),
            (false, true) => self.counts.find(format!("other bytes at {place} of node {number}")),
        }
        Ok(())
    }

    fn command(&self, program: usize, words: [&str; 3]) -> Result<()> {
        let log = self.folder.join("errors");
        let mut command = Command::new(&self.programs[program]);
        command.args(words).args(OPTIONS);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(fs::File::create(&log)?);
        let mut child = command.spawn()?;
        if !wait(&mut child, HANGS_AFTER)? {
            child.kill()?;
            self.counts.find(format!("{} hangs", words.join(" ")));
        }
        let status = child.wait()?;
        ensure!(status.success(), "{status}: {}", fs::read_to_string(&log)?.trim());
        Ok(())
    }
}
