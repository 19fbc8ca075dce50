//! A released node as a scripted child process.

use crate::helpers::{Folder, Process, skipped, until};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

/// The release that most stories are about.
pub(crate) const RELEASE: &str = "0.3.13.post1";
/// One without version 2 of the data protocol, the ready message and GIDs in handshakes.
pub(crate) const OLD: &str = "0.3.10.post2";
/// Set for stories that every change can do without.
const NIGHTLY: &str = "HANDFAST_NIGHTLY";
/// The reason for skipping a test.
pub(crate) const ABSENT: &str =
    "released Mooncake nodes are not installed; `cargo xtask test --stage fleet` installs them";
/// The value for no metadata store.
pub(crate) const BY_ADDRESS: &str = "P2PHANDSHAKE";
/// The folder they are in, set by that stage.
const FOLDER: &str = "HANDFAST_FLEET";
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stories/mooncake/peer.py");

/// An installed release.
pub(crate) struct Release {
    #[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "of use over RDMA alone"))]
    version: &'static str,
    python: PathBuf,
    libraries: String,
}

/// The releases of every test at night, and the newer one at every change.
pub(crate) fn releases() -> &'static [&'static str] {
    if is_night() { &[RELEASE, OLD] } else { &[RELEASE] }
}

/// Whether there is time for everything.
pub(crate) fn is_night() -> bool {
    std::env::var_os(NIGHTLY).is_some()
}

/// Runs a story with each of the releases, where they are installed.
pub(crate) fn with_each(versions: &[&'static str], mut story: impl FnMut(&Release)) {
    for version in versions {
        let Some(release) = Release::find(version) else { return skipped(ABSENT) };
        story(&release);
    }
}

impl Release {
    pub(crate) fn find(version: &'static str) -> Option<Self> {
        let folder = PathBuf::from(std::env::var_os(FOLDER)?);
        let python = folder.join(format!("mooncake-{version}/bin/python"));
        let packages = packages(&folder);
        let libraries = ["usr/lib", "lib"].map(|lib| packages.join(lib).join("x86_64-linux-gnu"));
        let libraries = libraries.map(|folder| folder.display().to_string()).join(":");
        python.exists().then_some(Self { version, python, libraries })
    }

    /// Whether it is of that version.
    #[cfg(feature = "verbs")]
    pub(crate) fn is(&self, version: &str) -> bool {
        self.version == version
    }

    /// A node that is found by its address.
    pub(crate) fn start(&self, bytes: u64) -> Peer {
        self.start_with(bytes, &[])
    }

    pub(crate) fn start_with(&self, bytes: u64, environment: &[(&str, &str)]) -> Peer {
        let mut peer = self.start_named("127.0.0.1", BY_ADDRESS, bytes, environment);
        peer.address = format!("127.0.0.1:{}", peer.port);
        peer
    }

    /// A node that is found through a store, or with `P2PHANDSHAKE` by its address.
    pub(crate) fn start_named(
        &self,
        name: &str,
        store: &str,
        bytes: u64,
        environment: &[(&str, &str)],
    ) -> Peer {
        self.start_as(&[name, store, &bytes.to_string()], environment)
    }

    /// A node whose memory is reached over a device, found by its address or through a store.
    #[cfg(feature = "verbs")]
    pub(crate) fn start_over_rdma(
        &self,
        (name, device): (&str, &str),
        store: &str,
        bytes: u64,
        environment: &[(&str, &str)],
    ) -> Peer {
        let arguments = [name, store, &bytes.to_string(), "rdma", device];
        let mut peer = self.start_as(&arguments, environment);
        if store == BY_ADDRESS {
            peer.address = format!("{name}:{}", peer.port);
        }
        peer
    }

    fn start_as(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Peer {
        let mut command = self.python();
        command.arg(SCRIPT).args(arguments);
        command.envs(environment.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = Process(command.spawn().unwrap());
        let commands = process.0.stdin.take().unwrap();
        let answers = BufReader::new(process.0.stdout.take().unwrap());
        let (port, memory, address) = (0, 0, arguments[0].to_owned());
        let mut peer = Peer { process, address, port, memory, commands, answers };
        let started = peer.hear();
        assert_eq!((&started["rc"], &started["registered"]), (&json!(0), &json!(0)), "{started}");
        peer.port = started["port"].as_u64().unwrap();
        peer.memory = started["address"].as_u64().unwrap();
        peer
    }

    /// The etcd in the same folder.
    #[cfg(feature = "etcd")]
    pub(crate) fn etcd(&self) -> PathBuf {
        let folder = self.python.ancestors().nth(3).unwrap();
        packages(folder).join("usr/bin/etcd")
    }

    /// The release's own interpreter.
    pub(crate) fn python(&self) -> Command {
        let mut command = Command::new(&self.python);
        command.env("LD_LIBRARY_PATH", &self.libraries);
        command
    }
}

/// The folder of distribution packages that the tests need.
pub(crate) fn packages(folder: &Path) -> PathBuf {
    folder.join("packages/fleet")
}

/// A running node.
pub(crate) struct Peer {
    pub(crate) process: Process,
    pub(crate) address: String,
    /// The port of its control channel.
    pub(crate) port: u64,
    /// The address of its memory.
    pub(crate) memory: u64,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    /// Asks for something and waits for the answer.
    #[track_caller]
    pub(crate) fn ask(&mut self, what: Value) -> Value {
        self.say(&what);
        let answer = self.hear();
        assert!(answer.get("error").is_none(), "{what}: {answer}");
        answer
    }

    pub(crate) fn say(&mut self, what: &Value) {
        writeln!(self.commands, "{what}").unwrap();
    }

    #[track_caller]
    pub(crate) fn hear(&mut self) -> Value {
        let mut line = String::new();
        assert_ne!(self.answers.read_line(&mut line).unwrap(), 0, "the node ended");
        serde_json::from_str(&line).unwrap()
    }

    /// Lets it write or read; it must succeed.
    #[track_caller]
    pub(crate) fn moves(&mut self, way: &str, peer: &str, here: u64, there: u64, bytes: u64) {
        let asked = json!({"cmd": way, "peer": peer, "here": here, "there": there, "bytes": bytes});
        assert_eq!(self.ask(asked)["rc"], 0, "{way} of {bytes} bytes");
    }

    /// Lets it write its first bytes to place 512 of a peer and read them back to `back`, which must
    /// come to `expected`. The older protocol acknowledges no write: it may arrive a moment later.
    #[track_caller]
    pub(crate) fn writes_and_reads_back(
        &mut self,
        folder: &Folder,
        peer: &str,
        back: u64,
        expected: &[u8],
    ) {
        let bytes = expected.len() as u64;
        self.moves("write", peer, 0, 512, bytes);
        until("what it wrote is there", || {
            self.moves("read", peer, back, 512, bytes);
            self.dump(folder, back, bytes) == expected
        });
    }

    /// Puts a file into its memory.
    pub(crate) fn load(&mut self, path: &str, here: u64) {
        self.ask(json!({"cmd": "load", "path": path, "here": here}));
    }

    /// The content of its memory.
    pub(crate) fn dump(&mut self, folder: &Folder, here: u64, bytes: u64) -> Vec<u8> {
        let path = folder.name("dump");
        self.ask(json!({"cmd": "dump", "path": path, "here": here, "bytes": bytes}));
        std::fs::read(path).unwrap()
    }
}
