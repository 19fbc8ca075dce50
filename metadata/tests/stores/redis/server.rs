//! A real Redis as a child process.

use crate::certificates::Certificates;
use crate::helpers::{eventually, free_port};
use handfast_metadata::{RedisOptions, RedisStore, Store, StoreCause, Tls};
use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A Redis of this test, which ends with it.
pub(super) struct Redis {
    pub(super) port: u16,
    arguments: Vec<OsString>,
    child: Child,
}

impl Redis {
    /// Starts one with these arguments in addition; `None` if there is no Redis here.
    pub(super) async fn start(arguments: &[&str]) -> Option<Self> {
        let port = free_port();
        let listen = ["--port", &port.to_string()].map(OsString::from);
        let more = arguments.iter().map(OsString::from);
        let redis = Self::spawned(port, listen.into_iter().chain(more).collect())?;
        redis.wait(RedisOptions::default()).await;
        Some(redis)
    }

    /// Starts one that speaks TLS alone, with clients of its authority.
    pub(super) async fn start_encrypted(certificates: &Certificates) -> Option<Self> {
        let port = free_port();
        let (certificate, key) = certificates.server();
        let arguments = ["--port", "0", "--tls-port", &port.to_string()].map(OsString::from);
        let mut arguments = arguments.to_vec();
        for (option, file) in [
            ("--tls-cert-file", certificate),
            ("--tls-key-file", key),
            ("--tls-ca-cert-file", certificates.authority()),
        ] {
            arguments.extend([option.into(), file.into()]);
        }
        let redis = Self::spawned(port, arguments)?;
        let tls = Tls::load(&certificates.client()).unwrap();
        redis.wait(RedisOptions { tls: Some(tls), ..RedisOptions::default() }).await;
        Some(redis)
    }

    fn spawned(port: u16, arguments: Vec<OsString>) -> Option<Self> {
        let present = program().arg("--version").stdout(Stdio::null()).status();
        present.ok().filter(|status| status.success())?;
        let child = spawn(&arguments);
        Some(Self { port, arguments, child })
    }

    /// Waits until it answers, if only with a refusal.
    async fn wait(&self, options: RedisOptions) {
        let store = self.store(options);
        eventually("it answers", async || match store.get("k").await {
            Ok(_) => true,
            Err(error) => matches!(error.cause, StoreCause::RedisRefused { .. }),
        })
        .await;
    }

    pub(super) fn store(&self, options: RedisOptions) -> RedisStore {
        RedisStore::new("127.0.0.1", self.port, options)
    }

    pub(super) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again, without its entries.
    pub(super) async fn restart(&mut self) {
        self.child = spawn(&self.arguments);
        let address = ("127.0.0.1", self.port);
        eventually("it listens", async || TcpStream::connect(address).is_ok()).await;
    }

    /// Stops or continues it.
    pub(super) fn signal(&self, name: &str) {
        let process = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &process]).status().unwrap().success());
    }

    /// Sends requests as hiredis does, and returns the bytes of all answers.
    pub(super) fn raw(&self, requests: &[&[&[u8]]]) -> Vec<u8> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        for request in requests.iter().chain([&[&b"QUIT"[..]][..]].iter()) {
            write!(stream, "*{}\r\n", request.len()).unwrap();
            for word in *request {
                write!(stream, "${}\r\n", word.len()).unwrap();
                stream.write_all(word).unwrap();
                stream.write_all(b"\r\n").unwrap();
            }
        }
        let mut answers = Vec::new();
        stream.read_to_end(&mut answers).unwrap();
        answers.strip_suffix(b"+OK\r\n").expect("an answer to QUIT").to_vec()
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // Either fails only when it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The unpacked Redis, else that of the system.
fn program() -> Command {
    let unpacked = std::env::var_os("HANDFAST_FLEET")
        .map(|folder| PathBuf::from(folder).join("packages/fleet/usr"))
        .filter(|usr| usr.join("bin/redis-server").exists());
    let Some(usr) = unpacked else { return Command::new("redis-server") };
    let mut command = Command::new(usr.join("bin/redis-server"));
    command.env("LD_LIBRARY_PATH", usr.join("lib/x86_64-linux-gnu"));
    command
}

fn spawn(arguments: &[OsString]) -> Child {
    let mut command = program();
    command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]).args(arguments);
    command.current_dir(std::env::temp_dir());
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Short enough for a test of silence.
pub(super) fn brief() -> RedisOptions {
    RedisOptions { timeout: Duration::from_millis(1_000), ..RedisOptions::default() }
}
