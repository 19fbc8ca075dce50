//! Containers of one host: each process has namespaces of its own for mounts, processes and the network.

use crate::helpers::{Client, Folder, PROGRAM, Server, again, skipped};
use handfast::{Engine, Memory, TransportKind};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Set for an initiator, to the place of its memory and, after a blank, its directory, if it has one.
const INITIATOR: &str = "HANDFAST_CONTAINER";
/// A port of its own for each server: the end of an earlier one may be under way.
const OWNER: &str = "10.78.0.1:0";
/// Bytes of a block, more than one slice.
const BYTES: usize = 300_000;
/// Mounts the directory `$1` at `$2`, and runs the rest.
const ENTER: &str = r#"mount --bind "$1" "$2" && shift 2 && exec "$@""#;

/// Two containers with a network between them, and a folder of the host.
struct Containers {
    name: String,
    folder: Folder,
}

impl Drop for Containers {
    fn drop(&mut self) {
        for host in ["a", "b"] {
            // It is not there only where making it has failed.
            let _ = ip(&format!("netns del {}{host}", self.name));
        }
    }
}

fn ip(words: &str) -> std::io::Result<Output> {
    Command::new("ip").args(words.split(' ')).output()
}

impl Containers {
    /// None, and said so, where namespaces may not be made.
    fn new() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("hfc{}n{number}", std::process::id());
        let containers = Self { name, folder: Folder::new() };
        for directory in ["common", "a", "b"] {
            std::fs::create_dir(containers.folder.join(directory)).unwrap();
        }
        let name = &containers.name;
        let steps = [
            format!("netns add {name}a"),
            format!("netns add {name}b"),
            format!("-n {name}a link add eth0 type veth peer name eth0 netns {name}b"),
            format!("-n {name}a address add 10.78.0.1/24 dev eth0"),
            format!("-n {name}b address add 10.78.0.2/24 dev eth0"),
            format!("-n {name}a link set eth0 up"),
            format!("-n {name}b link set eth0 up"),
        ];
        for step in steps {
            match ip(&step) {
                Ok(output) if output.status.success() => {}
                other => {
                    skipped(&format!("network namespaces cannot be made: ip {step}: {other:?}"));
                    return None;
                }
            }
        }
        let entered = containers.enter("a", &["true".as_ref()]).output();
        if !entered.is_ok_and(|output| output.status.success()) {
            skipped("namespaces of mounts and processes cannot be made here (it takes root)");
            return None;
        }
        Some(containers)
    }

    /// A program in one of the containers, which has the common directory at its own place.
    fn enter(&self, host: &str, program: &[&std::ffi::OsStr]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &format!("{}{host}", self.name), "unshare", "--mount"]);
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", ENTER, "sh"]);
        command.args([self.folder.join("common"), self.folder.join(host)]).args(program);
        command
    }

    /// Serves memory of the engine, and a file, in container a.
    fn serve(&self, has_directory: bool) -> Server {
        let file = format!("file={}", self.folder.sparse("file", BYTES as u64));
        let mut program = vec![PROGRAM, "serve", "--until-stdin-ends", "--listen", OWNER];
        program.extend(["--open", "--memory", "memory=1M", "--file", &file]);
        let directory = self.folder.name("a");
        if has_directory {
            program.extend(["--shared-memory-dir", &directory]);
        }
        let program: Vec<_> = program.into_iter().map(AsRef::as_ref).collect();
        Server::spawn(self.enter("a", &program))
    }

    /// Writes to memory of container a from container b, and returns what the initiator printed.
    fn write(&self, server: &Server, segment: &str, has_directory: bool) -> String {
        let directory = if has_directory { self.folder.name("b") } else { String::new() };
        let value = format!("{} {directory}", server.at(segment));
        let child = again("containers::initiator_in_a_container", INITIATOR, &value);
        let words = [child.get_program()].into_iter().chain(child.get_args());
        let mut command = self.enter("b", &words.collect::<Vec<_>>());
        command.env(INITIATOR, value);
        Client::spawn(command).end().done().output
    }
}

/// The initiator: writes and reads back until its lane shares memory or a reason is known, and says which.
#[tokio::test]
async fn initiator_in_a_container() {
    let Ok(value) = std::env::var(INITIATOR) else { return };
    let (place, directory) = value.split_once(' ').unwrap();
    let mut builder = Engine::builder();
    if !directory.is_empty() {
        builder = builder.shared_memory_dir(directory);
    }
    let engine = builder.start().await.unwrap();
    let segment = engine.open(place).await.unwrap();
    for seed in 0_usize.. {
        let content: Vec<u8> = (0..BYTES).map(|at| (at / 251 + at * 7 + seed) as u8).collect();
        let (block, back) = (Memory::zeroed(BYTES).unwrap(), Memory::zeroed(BYTES).unwrap());
        block.copy_in(0, &content).unwrap();
        segment.write(&block.whole(), 0).await.unwrap();
        segment.read(&back.whole(), 0).await.unwrap();
        let mut read = vec![0; BYTES];
        back.copy_out(0, &mut read).unwrap();
        assert!(read == content, "other bytes in round {seed}");
        let kind = segment.transport_kind().unwrap();
        let fallbacks = engine.fallbacks();
        let mut reasons = fallbacks.iter().filter(|it| it.missed() == TransportKind::Shm);
        let reason = reasons.next();
        if kind == TransportKind::Shm || reason.is_some() {
            let reason = reason.map(|it| format!("{it} [{}]", it.diagnosis_id()));
            println!("over {}: {}", kind.name(), reason.unwrap_or_default());
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    engine.close().await;
}

/// A directory that both containers mount at different places lets them share memory of the engine. The
/// kernel keeps private memory apart, which takes TCP with the reason.
#[test]
fn containers_share_memory_through_a_directory() {
    let Some(containers) = Containers::new() else { return };
    let server = containers.serve(true);
    let output = containers.write(&server, "memory", true);
    assert!(output.contains("over shm: \n"), "{output}");
    let output = containers.write(&server, "file", true);
    assert!(output.contains("over tcp: ") && output.contains("[SHM-PRIVATE]"), "{output}");
}

/// Without the directory they use TCP and say why; so do those of which one alone has it.
#[test]
fn containers_without_a_common_directory_say_so() {
    let Some(containers) = Containers::new() else { return };
    for (of_owner, of_initiator) in [(false, false), (false, true), (true, false)] {
        let server = containers.serve(of_owner);
        let output = containers.write(&server, "memory", of_initiator);
        assert!(output.contains("over tcp: ") && output.contains("[SHM-APART]"), "{output}");
    }
}
