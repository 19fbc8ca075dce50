//! A device that has no more for a process: the kernel's cgroups bound what one may have of it, and
//! a scripted device has few queue pairs.

use crate::helpers::{Client, PROGRAM, Server, run};
use crate::rdma_engine::{guest, pattern, start_at};
use crate::reregistered::on_devices;
use crate::wires::{connects_by_manager, nics};
use handfast::rdma::RdmaOptions;
use handfast::{Access, Engine, Memory, Segment, TransportChoice};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const BYTES: usize = 100_000;

/// A group of processes.
struct Group(PathBuf);

impl Group {
    fn new(name: &str) -> Self {
        let root = PathBuf::from("/run/cgroup");
        if !fs::exists(&root).unwrap() {
            fs::create_dir(&root).unwrap();
            let mut mount = Command::new("mount");
            let mounted = mount.args(["-t", "cgroup2", "none"]).arg(&root).status().unwrap();
            assert!(mounted.success());
            fs::write(root.join("cgroup.subtree_control"), "+rdma").unwrap();
        }
        let group = root.join(name);
        fs::create_dir(&group).unwrap();
        Self(group)
    }

    /// The program as one of the group.
    fn command(&self) -> Command {
        let mut command = Command::new("sh");
        let script = "echo $$ >\"$0/cgroup.procs\"; exec \"$@\"";
        command.args(["-c", script]).arg(&self.0).arg(PROGRAM);
        command
    }

    /// Objects of the device that the group has.
    fn objects(&self) -> u32 {
        let text = fs::read_to_string(self.0.join("rdma.current")).unwrap();
        let line = text.lines().find(|line| line.starts_with(nics()[1])).unwrap_or_default();
        let count = line.split(' ').find_map(|word| word.strip_prefix("hca_object="));
        count.map_or(0, |count| count.parse().unwrap())
    }

    fn allow(&self, objects: u32) {
        fs::write(self.0.join("rdma.max"), format!("{} hca_object={objects}", nics()[1])).unwrap();
    }
}

async fn write_and_check(segment: &Segment, seed: u8) {
    let block = pattern(BYTES, seed);
    segment.write(&block.whole(), 0).await.unwrap();
    let back = Memory::zeroed(BYTES).unwrap();
    segment.read(&back.whole(), 0).await.unwrap();
    assert_eq!(back.crc32c(0, BYTES).unwrap(), block.crc32c(0, BYTES).unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exhausted_device_evicts_the_longest_idle_lane() {
    let Some(()) = guest() else { return };
    let group = Group::new("server");
    let mut command = group.command();
    command.args([
        "serve",
        "--until-stdin-ends",
        "--open",
        "--listen",
        "10.0.0.2:0",
        "--memory",
        "m=1M",
    ]);
    command.args(["--transport", "rdma", "--device", nics()[1]]);
    let server = Server::spawn(command);
    // A completion queue, and the two queue pairs of one lane.
    group.allow(group.objects() + 3);
    let users = [start_at(nics()[0]).await, start_at(nics()[0]).await];
    for round in 0..2 {
        for (user, seed) in users.iter().zip(1..) {
            let segment = user.open(&server.at("m")).await.unwrap();
            write_and_check(&segment, 10 * round + seed).await;
        }
    }
    for user in users {
        user.close().await;
    }
}

/// A device with the queue pairs of one lane gives them to each user in turn.
#[test]
fn full_device_evicts_the_longest_idle_lane() {
    let test = "rdma_limits::full_device_evicts_the_longest_idle_lane";
    on_devices("rxe0=mlx5,rxe1=mlx5:queue_pairs=2", test, async |_| {
        let rdma = RdmaOptions::default().with(|it| it.devices = vec![nics()[1].to_owned()]);
        let owner = Engine::builder().transport(TransportChoice::Rdma).rdma(rdma);
        let owner = owner.listen("127.0.0.1:0").start().await.unwrap();
        let memory = Memory::zeroed(BYTES).unwrap();
        let served = owner.register("m").access(Access::READ_WRITE).serve(memory.whole());
        let _served = served.unwrap();
        let users = [start_at(nics()[0]).await, start_at(nics()[0]).await];
        for round in 0..2 {
            for (user, seed) in users.iter().zip(1..) {
                let segment = user.open(&format!("{}/m", owner.address())).await.unwrap();
                write_and_check(&segment, 10 * round + seed).await;
            }
        }
        assert!(owner.counters().life_cycle.ended >= 3, "each lane but the last was evicted");
        for user in users {
            user.close().await;
        }
        owner.close().await;
    });
}

#[test]
fn queue_pair_limit_is_reported_with_its_remedy() {
    let Some(()) = guest() else { return };
    let options = ["--transport", "rdma", "--device", nics()[1], "--memory", "m=1M"];
    let server = Server::start_at("10.0.0.2:0", &options);
    let group = Group::new("client");
    // Three domains and regions and the like, of which one lane would be too much; with the connection manager one
    // region more, of the byte that a dialler reads.
    group.allow(if connects_by_manager() { 5 } else { 4 });
    let mut command = group.command();
    command.args(["get", &server.at("m:0,10"), "/dev/shm/limited", "--transport", "rdma"]);
    command.args(["--device", nics()[1], "--gid", "10.0.0.2"]).stdout(Stdio::piped());
    let ended = Client::spawn(command).end();
    let words = ["queue pairs are in use by this process", "0 of ", "rdma.max"];
    ended.failed(1, &words);
    let others = ["get", &server.at("m:0,10"), "/dev/shm/limited", "--transport", "rdma"];
    assert_eq!(run(&others).code, Some(0), "others are not of the group");
}
