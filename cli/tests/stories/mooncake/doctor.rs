//! The doctor and metadata services that really run: an etcd, and our own.

use super::peer::packages;
use super::servers::Metadata;
use crate::doctor::{doctor, findings};
use crate::helpers::{Folder, Process, Server, free_address, skipped, until};
use rustix::process::Signal;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The folder of the unpacked distribution packages, set by `cargo xtask test --stage fleet`.
const FOLDER: &str = "HANDFAST_FLEET";
const NODE: &str = "node-b.example:1";
/// `mooncake/rpc_meta/node-b.example:1`, as an etcd takes it over HTTP.
const KEY: &str = "bW9vbmNha2UvcnBjX21ldGEvbm9kZS1iLmV4YW1wbGU6MQ==";
/// `{"ip_or_host_name":"127.0.0.1","rpc_port":1}`, likewise.
const VALUE: &str = "eyJpcF9vcl9ob3N0X25hbWUiOiIxMjcuMC4wLjEiLCJycGNfcG9ydCI6MX0=";

fn program() -> Option<PathBuf> {
    let folder = std::env::var_os(FOLDER).map(PathBuf::from)?;
    let program = packages(&folder).join("usr/bin/etcd");
    program.exists().then_some(program)
}

/// A running etcd with its data.
struct Etcd {
    program: PathBuf,
    folder: Folder,
    port: u16,
    /// Whether it speaks TLS, with what is in its folder.
    is_encrypted: bool,
    process: Option<Process>,
}

impl Etcd {
    /// None, and said so, where there is no etcd.
    fn start(listen: &str, advertise: &str) -> Option<Self> {
        let mut etcd = Self::prepare()?;
        etcd.run(listen, advertise);
        Some(etcd)
    }

    fn prepare() -> Option<Self> {
        let Some(program) = program() else {
            skipped("no etcd is unpacked; `cargo xtask test --stage fleet` unpacks one");
            return None;
        };
        let (folder, port) = (Folder::new(), free_port());
        Some(Self { program, folder, port, is_encrypted: false, process: None })
    }

    /// One at 127.0.0.1 that speaks TLS; `authority` in its folder vouches for it.
    fn start_encrypted(advertise: &str) -> Option<Self> {
        const MAKE: &str = "set -e; cd \"$0\"; \
            key='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'; \
            openssl req -x509 $key -days 2 -subj /CN=authority -keyout authority.key -out authority; \
            openssl req $key -subj /CN=etcd -keyout key -out request; \
            echo subjectAltName=IP:127.0.0.1 >names; \
            openssl x509 -req -in request -CA authority -CAkey authority.key -CAcreateserial \
                -days 2 -extfile names -out certificate";
        let mut etcd = Self { is_encrypted: true, ..Self::prepare()? };
        let made = Command::new("sh").args(["-c", MAKE, &etcd.folder.name("")]).output().unwrap();
        if !made.status.success() {
            skipped("there is no `openssl` that makes certificates");
            return None;
        }
        etcd.run("127.0.0.1", advertise);
        Some(etcd)
    }

    fn run(&mut self, listen: &str, advertise: &str) {
        let (port, peers) = (self.port, format!("http://127.0.0.1:{}", free_port()));
        let mut command = Command::new(&self.program);
        command.args(["--data-dir", &self.folder.name("data"), "--log-level", "error"]);
        let scheme = if self.is_encrypted { "https" } else { "http" };
        command.arg("--listen-client-urls").arg(format!("{scheme}://{listen}:{port}"));
        command.arg("--advertise-client-urls").arg(format!("{scheme}://{advertise}:{port}"));
        if self.is_encrypted {
            command.args(["--cert-file", &self.folder.name("certificate")]);
            command.args(["--key-file", &self.folder.name("key")]);
        }
        command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
        command.args(["--initial-cluster", &format!("default={peers}"), "--force-new-cluster"]);
        let spawned = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.process = Some(Process(spawned.unwrap()));
        let address = format!("{}:{port}", if listen == "0.0.0.0" { "127.0.0.1" } else { listen });
        until("the etcd answers", || {
            let request = "GET /health HTTP/1.0\r\n\r\n";
            // It closes a plain connection without an answer.
            if self.is_encrypted {
                return TcpStream::connect(&address).is_ok();
            }
            said_by(&address, request).is_ok_and(|answer| answer.contains("true"))
        });
    }

    fn url(&self, host: &str) -> String {
        format!("etcd://{host}:{}", self.port)
    }

    fn stop(&mut self) {
        let mut process = self.process.take().unwrap();
        process.signal(Signal::TERM);
        process.wait();
    }
}

/// The answer to a request, up to its end.
fn said_by(address: &str, request: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn free_port() -> u16 {
    free_address("127.0.0.1").rsplit_once(':').unwrap().1.parse().unwrap()
}

/// An address of this machine that others could use: the one that it would be left by.
pub(super) fn own_address() -> Option<String> {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    // Nothing is sent: the address is of the block for documentation.
    let left = socket.connect("192.0.2.1:9").and_then(|()| socket.local_addr());
    match left {
        Ok(address) if !address.ip().is_loopback() => Some(address.ip().to_string()),
        _ => {
            skipped("this machine has no address but loopback");
            None
        }
    }
}

/// Findings about the metadata service. A password `secret` is in none.
pub(super) fn asked(url: &str, more: &[&str]) -> Vec<Value> {
    let ended = doctor(&[&["--transport", "tcp", "--metadata", url], more].concat());
    assert!(!ended.output.contains("secret"), "{ended:?}");
    let found = findings(&ended.output).into_iter();
    let about = ["ETCD", "REDIS", "META", "SEG", "NET"];
    let is_about = |finding: &Value| {
        about.iter().any(|word| finding["id"].as_str().unwrap().starts_with(word))
    };
    found.filter(is_about).collect()
}

#[track_caller]
pub(super) fn one(found: &[Value], id: &str) -> Value {
    assert_eq!(found.iter().map(|finding| &finding["id"]).collect::<Vec<_>>(), [id], "{found:?}");
    found[0].clone()
}

#[test]
fn stopped_etcd_is_found_until_it_runs_again() {
    let Some(mut etcd) = Etcd::start("127.0.0.1", "127.0.0.1") else { return };
    let url = etcd.url("127.0.0.1");
    // It advertises an address of this machine alone, which is the only finding.
    one(&asked(&url, &[]), "ETCD-ADVERTISE");
    etcd.stop();
    one(&asked(&url, &[]), "ETCD-DOWN");
    etcd.run("127.0.0.1", "127.0.0.1");
    one(&asked(&url, &[]), "ETCD-ADVERTISE");
}

#[test]
fn an_etcd_bound_to_loopback_is_told_from_one_that_is_down() {
    let Some(own) = own_address() else { return };
    let Some(mut etcd) = Etcd::start("127.0.0.1", &own) else { return };
    let url = etcd.url(&own);
    let found = one(&asked(&url, &[]), "ETCD-LOOPBACK");
    let command = found["command"].as_str().unwrap();
    assert!(command.contains("--listen-client-urls http://0.0.0.0:2379"), "{command}");
    etcd.stop();
    one(&asked(&url, &[]), "ETCD-DOWN");
    // As its remedy says.
    etcd.run("0.0.0.0", &own);
    assert_eq!(asked(&url, &[]), [] as [Value; 0]);
}

#[test]
fn an_etcd_that_advertises_localhost_is_found() {
    let Some(own) = own_address() else { return };
    let Some(etcd) = Etcd::start("0.0.0.0", "localhost") else { return };
    one(&asked(&etcd.url(&own), &[]), "ETCD-ADVERTISE");
}

#[test]
fn an_etcd_behind_tls_is_looked_into_or_it_is_said_why_not() {
    let Some(etcd) = Etcd::start_encrypted("10.1.0.9") else { return };
    let found = one(&asked(&etcd.url("127.0.0.1"), &[]), "ETCD-TLS");
    let url = etcd.url("https://127.0.0.1");
    assert!(found["observed"].as_str().unwrap().contains(&format!("write {url}")), "{found}");
    let vouched = asked(&url, &["--metadata-ca", &etcd.folder.name("authority")]);
    let by_nobody = asked(&url, &[]);
    if cfg!(feature = "tls") {
        assert_eq!(vouched, [] as [Value; 0]);
        assert_eq!(one(&by_nobody, "ETCD-TLS")["severity"], "fatal");
    } else {
        for found in [vouched, by_nobody] {
            let found = one(&found, "ETCD-TLS");
            assert_eq!(found["severity"], "cannot-tell", "{found}");
        }
    }
}

/// A node that publishes what it serves.
fn node(store: &Metadata) -> Server {
    let words = ["--memory", "1M", "--compat", "mooncake", "--name", NODE];
    Server::start(&[&words[..], &["--metadata", &store.url]].concat())
}

fn store(folder: &Folder) -> Metadata {
    Metadata::start("127.0.0.1:0", &folder.name("table"))
}

#[test]
fn entries_of_killed_node_are_stale_until_it_restarts() {
    let folder = Folder::new();
    let store = store(&folder);
    let server = node(&store);
    let look = || asked(&store.url, &["--segment", NODE]);
    assert_eq!(look(), [] as [Value; 0]);
    server.process.signal(Signal::KILL);
    drop(server);
    let found = one(&look(), "META-STALE");
    assert_eq!(found["side"], "remote");
    assert_eq!(found["command"], format!("etcdctl del mooncake/rpc_meta/{NODE}"));
    let _server = node(&store);
    assert_eq!(look(), [] as [Value; 0]);
}

#[test]
fn a_name_with_a_slip_in_it_leads_to_the_node_that_is_meant() {
    let folder = Folder::new();
    let store = store(&folder);
    let _server = node(&store);
    one(&asked(&store.url, &["--segment", "node-b.exmaple:1"]), "SEG-NAME");
    assert_eq!(asked(&store.url, &["--segment", NODE]), [] as [Value; 0]);
    // An etcd lists its keys, so the finding names the nearest one.
    let Some(etcd) = Etcd::start("127.0.0.1", "10.1.0.9") else { return };
    let url = etcd.url("127.0.0.1");
    publish(&etcd);
    let found = one(&asked(&url, &["--segment", "node-b.exmaple:1"]), "SEG-NAME");
    let observed = found["observed"].as_str().unwrap();
    assert!(observed.contains("the nearest is node-b.example:1"), "{observed}");
    // Nobody takes calls at what was published.
    one(&asked(&url, &["--segment", NODE]), "META-STALE");
}

/// Puts an entry as a node does that nobody can call.
fn publish(etcd: &Etcd) {
    let body = serde_json::json!({ "key": KEY, "value": VALUE });
    let (body, length) = (body.to_string(), body.to_string().len());
    let request = format!("POST /v3/kv/put HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}");
    let answer = said_by(&format!("127.0.0.1:{}", etcd.port), &request).unwrap();
    assert!(answer.contains("200 OK"), "{answer}");
}
