//! The servers, the store of their names, and the faults that strike them.

use super::clients::has_disks;
use super::{Random, Summary};
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use std::fmt::{self, Display, Formatter};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

const KEY: &str = "soak 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n";
pub(super) const SEGMENT_BYTES: u64 = 4 << 20;
/// The server that clients find by its name in the store.
const NAMED: &str = "named";
const STORED: &str = "soak:1";
const READY_WITHIN: Duration = Duration::from_secs(30);
/// Connections that take a server's last descriptors.
const CROWD: usize = 64;

/// A process that is killed when dropped.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.0), signal)?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The holdings of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(super) descriptors: usize,
    pub(super) threads: usize,
    pub(super) memory_kib: u64,
}

impl Held {
    fn of(pid: u32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count();
        Some(Self {
            descriptors,
            threads: field("Threads:")? as usize,
            memory_kib: field("RssAnon:")? + field("RssShmem:")?,
        })
    }

    /// Whether it is more than an earlier `other`, past what caches and idle threads explain.
    pub(super) fn is_more_than(&self, other: &Self) -> bool {
        self.descriptors > other.descriptors + 2
            || self.threads > other.threads + 2
            || self.memory_kib > other.memory_kib + other.memory_kib / 8 + 8 * 1_024
    }
}

impl Display for Held {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let Self { descriptors, threads, memory_kib } = self;
        write!(out, "{descriptors} descriptors, {threads} threads, {memory_kib} KiB")
    }
}

/// A server, which is started again at its address after each kill.
pub(crate) struct Server {
    pub(super) name: &'static str,
    address: String,
    /// Its name or address, for clients.
    pub(super) place: String,
    /// Options of its clients and of itself.
    pub(super) options: Vec<String>,
    /// Whether faults kill it.
    is_mortal: bool,
    process: Mutex<Option<Process>>,
    /// Times that it was killed, and faults of any kind, each counted at its beginning and its end.
    pub(super) kills: AtomicU64,
    pub(super) faults: AtomicU64,
}

/// All servers and the store.
pub(crate) struct Fleet {
    pub(super) program: PathBuf,
    pub(super) folder: PathBuf,
    /// Whether a client may have a full disk.
    pub(super) has_disks: bool,
    pub(super) servers: Vec<Server>,
    store: Mutex<Option<Process>>,
    store_port: u16,
}

/// Returns a port below those that the system gives to connections, so that nothing takes it while its
/// server restarts.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = std::process::id() * 64 + NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 20_000 + (number % 12_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Starts a server, and waits until it says that it is ready.
pub(crate) fn spawn(command: &mut Command, log: &Path, within: Duration) -> Result<Process> {
    let errors = fs::File::options().append(true).create(true).open(log)?;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors);
    let mut process = Process(command.spawn()?);
    let output = process.0.stdout.take().context("its output is a pipe")?;
    let (saying, said) = mpsc::channel();
    // To the end, since a full pipe would stop the process, and a closed one end it.
    thread::spawn(move || {
        let lines = BufReader::new(output).lines().map_while(Result::ok);
        lines.filter(|line| line.trim_end() == "ready").for_each(|_| {
            let _ = saying.send(());
        });
    });
    match said.recv_timeout(within) {
        Ok(()) => Ok(process),
        Err(RecvTimeoutError::Timeout) => bail!("it is not ready in {within:?}"),
        Err(RecvTimeoutError::Disconnected) => {
            bail!("it ended before it was ready; see {}", log.display())
        }
    }
}

impl Fleet {
    pub(super) fn start(program: &Path, folder: &Path, has_device: bool) -> Result<Self> {
        let keys = folder.join("keys");
        fs::write(&keys, KEY)?;
        fs::set_permissions(&keys, fs::Permissions::from_mode(0o600))?;
        let store_port = free_port();
        let encrypted = format!("--transport tcp --encrypt-lanes --auth psk:{}", keys.display());
        let named = format!("--transport tcp --metadata http://127.0.0.1:{store_port}/metadata");
        let mut kinds = vec![
            ("tcp", "--transport tcp".to_owned(), false),
            ("shared memory", "--transport shm".into(), false),
            ("encrypted", encrypted, true),
            ("auto", "--transport auto".into(), true),
            (NAMED, named, true),
        ];
        if has_device {
            kinds.push(("rdma", "--transport rdma".into(), true));
        }
        let mut servers = Vec::new();
        for (name, options, is_mortal) in kinds {
            let address = format!("127.0.0.1:{}", free_port());
            servers.push(Server {
                name,
                place: if name == NAMED { STORED.to_owned() } else { address.clone() },
                address,
                options: options.split(' ').map(str::to_owned).collect(),
                is_mortal,
                process: Mutex::default(),
                kills: AtomicU64::new(0),
                faults: AtomicU64::new(0),
            });
        }
        let (program, folder) = (program.to_owned(), folder.to_owned());
        let has_disks = has_disks(&folder);
        let store = Mutex::default();
        let fleet = Self { program, folder, has_disks, servers, store, store_port };
        fleet.start_store()?;
        for server in &fleet.servers {
            fleet.start_server(server).context(server.name)?;
        }
        Ok(fleet)
    }

    fn start_store(&self) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.args(["metadata", "--listen", &format!("127.0.0.1:{}", self.store_port)]);
        command.arg("--file").arg(self.folder.join("table"));
        let log = self.folder.join("store.log");
        let process = spawn(&mut command, &log, READY_WITHIN).context("the store")?;
        *self.store.lock().expect("no thread panics") = Some(process);
        Ok(())
    }

    fn start_server(&self, server: &Server) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.args(["serve", "--listen", &server.address]).args(&server.options);
        command.args(["--memory", &format!("m={SEGMENT_BYTES}")]);
        if server.name == NAMED {
            command.args(["--name", STORED]);
        }
        let log = self.folder.join(format!("{}.log", server.name.replace(' ', "-")));
        let process = spawn(&mut command, &log, READY_WITHIN)?;
        *server.process.lock().expect("no thread panics") = Some(process);
        Ok(())
    }

    /// The holdings of each server that is never killed.
    pub(super) fn held(&self) -> Vec<(String, Held)> {
        let lasting = self.servers.iter().filter(|server| !server.is_mortal);
        let held = lasting.filter_map(|server| {
            let process = server.process.lock().expect("no thread panics");
            Some((server.name.to_owned(), Held::of(process.as_ref()?.0.id())?))
        });
        held.collect()
    }

    /// Finds servers that have ended by themselves.
    pub(super) fn check(&self, summary: &mut Summary) {
        for server in &self.servers {
            let mut process = server.process.lock().expect("no thread panics");
            let ended = process.as_mut().and_then(|process| process.0.try_wait().ok()?);
            if let Some(status) = ended {
                summary.crashed.push(format!("the server {}: {status}", server.name));
            }
        }
    }
}

const KINDS: [&str; 4] = ["killed", "stopped", "without descriptors", "store killed"];

/// The faults of a seed, one after the other.
pub(crate) struct Faults {
    random: Random,
    counts: [u64; KINDS.len()],
}

impl Display for Faults {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let all = KINDS.iter().zip(self.counts).map(|(kind, count)| format!("{kind} {count}"));
        out.write_str(&all.collect::<Vec<_>>().join(", "))
    }
}

impl Faults {
    pub(super) fn new(seed: u64) -> Self {
        Self { random: Random::of(seed, 0), counts: [0; KINDS.len()] }
    }

    /// Waits, and strikes once.
    ///
    /// # Errors
    /// A server has ended by itself, or does not start again.
    pub(super) fn strike(&mut self, fleet: &Fleet) -> Result<()> {
        thread::sleep(self.random.millis(100, 1_500));
        let kind = self.random.below(KINDS.len() as u64) as usize;
        let chosen: Vec<&Server> =
            fleet.servers.iter().filter(|server| kind != 0 || server.is_mortal).collect();
        let mut server = chosen[self.random.below(chosen.len() as u64) as usize];
        if kind == 3 {
            let named = fleet.servers.iter().find(|server| server.name == NAMED);
            server = named.context("a server with a name")?;
        }
        let pause = self.random.millis(50, 2_500);
        self.counts[kind] += 1;
        server.faults.fetch_add(1, Ordering::SeqCst);
        let struck = match kind {
            0 => kill(fleet, server, pause),
            3 => {
                *fleet.store.lock().expect("no thread panics") = None;
                thread::sleep(pause);
                fleet.start_store()
            }
            1 => with_process(server, |process| {
                process.signal(Signal::STOP)?;
                thread::sleep(pause);
                process.signal(Signal::CONT)
            }),
            _ => with_process(server, |process| starve(server, process, pause)),
        };
        server.faults.fetch_add(1, Ordering::SeqCst);
        struck.with_context(|| format!("the server {}, {}", server.name, KINDS[kind]))
    }
}

fn kill(fleet: &Fleet, server: &Server, pause: Duration) -> Result<()> {
    server.kills.fetch_add(1, Ordering::SeqCst);
    let running = server.process.lock().expect("no thread panics").take();
    if let Some(mut process) = running
        && let Some(status) = process.0.try_wait()?
    {
        fleet.start_server(server)?;
        bail!("it had ended by itself: {status}");
    }
    thread::sleep(pause / 4);
    fleet.start_server(server)
}

fn with_process(server: &Server, act: impl FnOnce(&Process) -> Result<()>) -> Result<()> {
    let process = server.process.lock().expect("no thread panics");
    act(process.as_ref().context("it has no process")?)
}

/// Takes a server's last descriptors for a while.
fn starve(server: &Server, process: &Process, pause: Duration) -> Result<()> {
    let pid = Pid::from_child(&process.0);
    let held = Held::of(process.0.id()).context("it has ended")?;
    // The highest is inherited; the server may have raised its own.
    let maximum = getrlimit(Resource::Nofile).maximum;
    let few = Rlimit { current: Some(held.descriptors as u64 + 4), maximum };
    let before = prlimit(Some(pid), Resource::Nofile, few)?;
    let crowd: Vec<_> = (0..CROWD).map(|_| TcpStream::connect(&server.address)).collect();
    thread::sleep(pause);
    drop(crowd);
    prlimit(Some(pid), Resource::Nofile, before)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(script: &str, within: Duration) -> Result<Process> {
        let folder = tempfile::tempdir()?;
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        spawn(&mut command, &folder.path().join("log"), within)
    }

    /// A server that says nothing, or ends, fails its start in time; one that goes on to speak is not stopped.
    #[test]
    fn silent_server_fails_its_start_in_time() {
        let error = |script| {
            let within = Duration::from_millis(50);
            started(script, within).err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert!(error("exec sleep 600").contains("not ready"));
        assert!(error("echo begun; exec sleep 600").contains("not ready"));
        let ended = started("echo begun", Duration::from_secs(600)).err().map(|it| it.to_string());
        assert!(ended.is_some_and(|text| text.contains("ended before")));
        // Far more than a pipe holds.
        let script = "echo ready; head -c 1000000 /dev/zero";
        let mut server = started(script, Duration::from_secs(600)).expect("it is ready");
        assert!(server.0.wait().is_ok_and(|status| status.success()), "it could write all");
    }
}
