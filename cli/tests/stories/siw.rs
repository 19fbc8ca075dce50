//! A machine whose RDMA devices are soft-iWARP's, whose queue pairs only the kernel's connection manager
//! connects, as those of eRDMA in standard mode: a virtual machine, siw0 at 10.0.0.1 and siw1 at
//! 10.0.0.2 (`cargo xtask guest --nics siw`).

use crate::helpers::{Client, Folder, MIB, PATIENCE, RecordedEngine, Server, run, skipped, until};
use crate::rdma_engine::{pattern, start_at};
use crate::wires::Wire;
use handfast::rdma::RdmaOptions;
use handfast::{Access, Engine, Memory, Segment, TransportKind};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Bytes of each write of a story.
const BYTES: usize = MIB as usize;

/// Whether the test can run here. A guest built for it must have the devices.
fn guest() -> Option<()> {
    let has_nics = std::env::var("HANDFAST_NICS").is_ok_and(|nics| nics == "siw");
    if !has_nics {
        skipped("it needs siw0 and siw1 of a guest");
    }
    has_nics.then_some(())
}

/// Bytes go to a server and come back over a lane that the connection manager connected.
#[test]
fn bytes_move_over_soft_iwarp() {
    let Some(()) = guest() else { return };
    let folder = Folder::new();
    let file = folder.patterned("file", MIB, 1);
    let rdma = ["--transport", "rdma", "--device"];
    let serve = [&["--memory", "m=1M"], &rdma[..], &["siw1"]].concat();
    let server = Server::start_at("10.0.0.2:0", &serve);
    let put = [&["put", &file, &server.address, "--json"], &rdma[..], &["siw0"]].concat();
    let ended = run(&put).done();
    assert!(ended.output.contains(r#""transport":"rdma""#), "{}", ended.output);
    let copy = folder.name("copy");
    run(&[&["get", &server.at("m"), &copy], &rdma[..], &["siw0"]].concat()).done();
    assert!(fs::read(&file).unwrap() == fs::read(&copy).unwrap(), "other bytes came back");
}

/// A server is killed and another has its place: a put of other bytes goes on to it, and a reader that was connected
/// to the first reads those bytes, over a lane to the new one, and nothing of the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarted_server_over_soft_iwarp_is_written_and_read() {
    let Some(()) = guest() else { return };
    let folder = Folder::new();
    let files = [2, 3].map(|seed| folder.patterned(&format!("file{seed}"), MIB, seed));
    let serve = ["--memory", "m=1M", "--transport", "rdma", "--device", "siw1"];
    let mut server = Server::start_at("10.0.0.2:0", &serve);
    let place = server.at("m");
    let rdma = ["--retries", "20", "--transport", "rdma", "--device", "siw0"];
    let put = |file| [&["put", file, &place], &rdma[..]].concat();
    run(&put(&files[0])).done();
    let reader = start_at("siw0").await;
    let segment = reader.open(&place).await.unwrap();
    let read = Memory::zeroed(MIB as usize).unwrap();
    segment.read(&read.whole(), 0).timeout(PATIENCE).await.unwrap();
    assert!(is_in(&read, &files[0]), "the first server's bytes");
    server.process.kill();
    let client = Client::start(&put(&files[1]));
    let _server = server.restart(&serve);
    client.end().done();
    let since = Instant::now();
    while let Err(error) = segment.read(&read.whole(), 0).timeout(PATIENCE).await {
        assert!(since.elapsed() < PATIENCE, "{error}");
    }
    assert!(is_in(&read, &files[1]), "other bytes than the second server's");
    reader.close().await;
}

/// Whether memory has the bytes of a file.
fn is_in(memory: &Memory, file: &str) -> bool {
    let mut bytes = vec![0; memory.whole().len()];
    memory.copy_out(0, &mut bytes).unwrap();
    bytes == fs::read(file).unwrap()
}

/// Writes until the stop flag, and returns the number of writes and those that failed, each with its cause.
async fn keep_writing(
    segment: Segment,
    block: Memory,
    stop: Arc<AtomicBool>,
) -> (u32, Vec<String>) {
    let (mut count, mut failures) = (0, Vec::new());
    while !stop.load(Ordering::Acquire) {
        count += 1;
        if let Err(error) = segment.write(&block.whole(), 0).timeout(PATIENCE).await {
            failures.push(error.to_string());
        }
    }
    (count, failures)
}

/// A device that is removed during writes: they go on over TCP, the removal ends since the node closes the device, and
/// once it is back the node uses it again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removed_device_is_given_up_and_used_again() {
    let Some(()) = guest() else { return };
    let wire = Wire::new(20);
    // Each has a directory of its own, so that they share no memory, as on two hosts.
    let folders = [Folder::new(), Folder::new()];
    let start = async |side: u32| {
        let rdma = RdmaOptions::default().with(|it| it.devices = vec![wire.device(side)]);
        let builder = Engine::builder().rdma(rdma).listen("127.0.0.1:0");
        RecordedEngine::start(builder.shared_memory_dir(folders[side as usize].path())).await
    };
    let (user, owner) = (start(0).await, start(1).await);
    let memory = Memory::zeroed(BYTES).unwrap();
    let _served = owner.register("m").access(Access::READ_WRITE).serve(memory.whole()).unwrap();
    let segment = user.open(owner.address()).await.unwrap();
    let is_rdma = || segment.transport_kind() == Some(TransportKind::Rdma);
    let written = async |seed| {
        let block = pattern(BYTES, seed);
        segment.write(&block.whole(), 0).timeout(PATIENCE).await.unwrap();
        assert_eq!(memory.crc32c(0, BYTES).unwrap(), block.crc32c(0, BYTES).unwrap());
    };
    written(1).await;
    assert!(is_rdma(), "{:?}", segment.transport_kind());

    let stop = Arc::new(AtomicBool::new(false));
    let writing = keep_writing(segment.clone(), pattern(BYTES, 2), Arc::clone(&stop));
    let writing = tokio::spawn(writing);
    let mut removal = wire.removal(0);
    let begun = Instant::now();
    until("the loss is reported", || !user.unusable_devices().is_empty());
    until("the removal ends", || removal.try_wait().unwrap().is_some());
    println!("removed within {} ms", begun.elapsed().as_millis());
    stop.store(true, Ordering::Release);
    let (count, failures) = writing.await.unwrap();
    println!("{} of {count} writes failed: {failures:?}", failures.len());
    written(3).await;
    assert!(!is_rdma(), "{:?}", segment.transport_kind());

    wire.device_returns(0);
    let returned = Instant::now();
    while !is_rdma() {
        written(4).await;
        assert!(returned.elapsed() < PATIENCE, "RDMA is not used again");
    }
    println!("used again {} ms after its return", returned.elapsed().as_millis());
    written(5).await;
    user.close().await;
    owner.close().await;
}

/// All steps of `smoke` pass: simultaneous opens, bytes, queue pairs made again, a restart.
#[test]
fn smoke_passes_over_soft_iwarp() {
    let Some(()) = guest() else { return };
    for devices in ["siw0,siw1", "siw0"] {
        let smoke = run(&["smoke", "--loopback", "--device", devices, "--json"]).done();
        assert!(!smoke.output.contains(r#""fail""#), "{}", smoke.output);
        assert!(smoke.output.contains("rdma-cm"), "{}", smoke.output);
    }
}
