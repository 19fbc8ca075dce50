//! A real etcd as a child process.

use crate::certificates::Certificates;
use crate::helpers::{eventually, free_port};
use etcd_client::Client;
use handfast_metadata::{EtcdOptions, EtcdStore, Store, Tls};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// An etcd of this test, which ends with it.
pub(super) struct Etcd {
    program: PathBuf,
    folder: TempDir,
    pub(super) endpoint: String,
    peers: String,
    certificates: Option<Certificates>,
    child: Child,
}

impl Etcd {
    /// One that serves, where there is one at all.
    pub(super) async fn start() -> Option<Self> {
        let etcd = Self::begin(None)?;
        // It listens before it has elected itself.
        let store = etcd.store(EtcdOptions::default());
        eventually("it serves", async || store.get("k").await.is_ok()).await;
        Some(etcd)
    }

    /// One that speaks TLS alone, to those whom its authority vouches for.
    pub(super) async fn start_encrypted(certificates: &Certificates) -> Option<Self> {
        let etcd = Self::begin(Some(certificates.clone()))?;
        let tls = Tls::load(&certificates.client()).unwrap();
        let store = etcd.store(EtcdOptions { tls: Some(tls), ..EtcdOptions::default() });
        eventually("it serves", async || store.get("k").await.is_ok()).await;
        Some(etcd)
    }

    fn begin(certificates: Option<Certificates>) -> Option<Self> {
        let unpacked = std::env::var_os("HANDFAST_FLEET")
            .map(|folder| PathBuf::from(folder).join("packages/fleet/usr/bin/etcd"));
        let program = unpacked.filter(|it| it.exists()).unwrap_or_else(|| "etcd".into());
        let present = Command::new(&program).arg("--version").stdout(Stdio::null()).status();
        present.ok().filter(|status| status.success())?;
        let folder = tempfile::tempdir().unwrap();
        let (endpoint, peers) = (free(), free());
        let child = spawn(&program, &folder, &endpoint, &peers, certificates.as_ref());
        Some(Self { program, folder, endpoint, peers, certificates, child })
    }

    /// Ends it with all it knew; what comes back at its address knows nothing.
    pub(super) fn forget(&mut self) {
        self.kill();
        std::fs::remove_dir_all(self.folder.path().join("data")).unwrap();
    }

    pub(super) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(super) fn restart(&mut self) {
        let Self { program, folder, endpoint, peers, certificates, .. } = self;
        self.child = spawn(program, folder, endpoint, peers, certificates.as_ref());
    }

    pub(super) fn store(&self, options: EtcdOptions) -> EtcdStore {
        EtcdStore::new(std::slice::from_ref(&self.endpoint), options)
    }

    pub(super) async fn client(&self) -> Client {
        Client::connect([&self.endpoint], None).await.unwrap()
    }

    /// Has it answer only users that it knows; `root` has the password `secret`.
    pub(super) async fn ask_for_passwords(&self) {
        let mut client = self.client().await;
        client.role_add("root").await.unwrap();
        client.user_add("root", "secret", None).await.unwrap();
        client.user_grant_role("root", "root").await.unwrap();
        client.auth_enable().await.unwrap();
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        // Either fails only when it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(
    program: &PathBuf,
    folder: &TempDir,
    endpoint: &str,
    peers: &str,
    certificates: Option<&Certificates>,
) -> Child {
    let scheme = if certificates.is_some() { "https" } else { "http" };
    let (clients, peers) = (format!("{scheme}://{endpoint}"), format!("http://{peers}"));
    let mut command = Command::new(program);
    if let Some(certificates) = certificates {
        let (certificate, key) = certificates.server();
        command.arg("--cert-file").arg(certificate).arg("--key-file").arg(key);
        command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(certificates.authority());
    }
    command.arg("--data-dir").arg(folder.path().join("data")).args(["--log-level", "error"]);
    command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
    command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
    command.args(["--initial-cluster", &format!("default={peers}")]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let started = std::net::TcpStream::connect;
    for _ in 0..2_000 {
        if started(endpoint).is_ok() {
            break;
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
    child
}

fn free() -> String {
    format!("127.0.0.1:{}", free_port())
}
