//! Metadata servers of every kind, as processes of a story.

use super::peer::Release;
#[cfg(feature = "redis")]
use super::peer::packages;
#[cfg(feature = "etcd")]
use crate::helpers::Folder;
use crate::helpers::{PROGRAM, Process, free_address};
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
#[cfg(feature = "redis")]
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The interpreter of a release loads what its server needs, which takes minutes where the processor
/// is emulated and shared.
const STARTED_WITHIN: Duration = Duration::from_secs(300);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// One that runs until it is dropped.
pub(crate) struct Metadata {
    _process: Process,
    pub(crate) url: String,
}

impl Metadata {
    /// `handfast metadata`, with its table in a file.
    pub(crate) fn start(listen: &str, file: &str) -> Self {
        let mut command = Command::new(PROGRAM);
        command.args(["metadata", "--until-stdin-ends", "--listen", listen, "--file", file]);
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut process = Process(spawned.unwrap());
        let mut line = String::new();
        BufReader::new(process.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let url = line.split([' ', ',']).nth(2).expect("a URL").trim_end().to_owned();
        Self { _process: process, url }
    }

    /// The address that it listens at.
    pub(crate) fn address(&self) -> &str {
        self.url.strip_prefix("http://").unwrap().strip_suffix("/metadata").unwrap()
    }

    /// The Redis of the unpacked distribution packages, with these arguments; `None` if there is none.
    #[cfg(feature = "redis")]
    pub(crate) fn redis(address: &str, arguments: &[&str]) -> Option<Self> {
        let usr = packages(&PathBuf::from(std::env::var_os("HANDFAST_FLEET")?)).join("usr");
        let program = usr.join("bin/redis-server");
        if !program.exists() {
            return None;
        }
        let (host, port) = address.rsplit_once(':').unwrap();
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", usr.join("lib/x86_64-linux-gnu"));
        command.args(["--port", port, "--bind", host, "--save", "", "--appendonly", "no"]);
        command.args(arguments).current_dir(std::env::temp_dir());
        let url = format!("redis://{address}");
        Some(Self::spawn(command, address, url))
    }

    fn spawn(mut command: Command, address: &str, url: String) -> Self {
        let spawned = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let (mut process, began) = (Process(spawned.unwrap()), Instant::now());
        while TcpStream::connect(address).is_err() {
            assert!(process.is_running(), "the metadata server ended");
            assert!(began.elapsed() < STARTED_WITHIN, "the metadata server does not listen");
            std::thread::sleep(LOOK_EVERY);
        }
        Self { _process: process, url }
    }
}

impl Release {
    /// The release's own HTTP server.
    pub(crate) fn metadata_server(&self, host: &str) -> Metadata {
        let address = free_address(host);
        let (host, port) = address.rsplit_once(':').unwrap();
        let mut command = self.python();
        command.args(["-m", "mooncake.http_metadata_server", "--host", host, "--port", port]);
        let url = format!("http://{address}/metadata");
        Metadata::spawn(command, &address, url)
    }

    /// The etcd unpacked with the release.
    #[cfg(feature = "etcd")]
    pub(crate) fn etcd_server(&self, host: &str, folder: &Folder) -> Metadata {
        let (clients, peers) = (free_address(host), free_address(host));
        let mut command = Command::new(self.etcd());
        let (to_clients, to_peers) = (format!("http://{clients}"), format!("http://{peers}"));
        command.args(["--data-dir", &folder.name("etcd"), "--log-level", "error"]);
        command.args(["--listen-client-urls", &to_clients, "--advertise-client-urls", &to_clients]);
        command.args(["--listen-peer-urls", &to_peers, "--initial-advertise-peer-urls", &to_peers]);
        command.args(["--initial-cluster", &format!("default={to_peers}")]);
        Metadata::spawn(command, &clients, format!("etcd://{clients}"))
    }
}
