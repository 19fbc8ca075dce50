//! A machine whose RDMA devices are soft-iWARP's, whose queue pairs only the kernel's connection manager
//! connects, as those of eRDMA in standard mode: a virtual machine, siw0 at 10.0.0.1 and siw1 at
//! 10.0.0.2 (`cargo xtask guest --nics siw`).

use crate::helpers::{Client, Folder, MIB, Server, run, skipped};
use std::fs;

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

/// A put to a server that was killed goes on once another has its place, over a lane to the new one.
#[test]
fn put_over_soft_iwarp_reaches_a_restarted_server() {
    let Some(()) = guest() else { return };
    let folder = Folder::new();
    let file = folder.patterned("file", MIB, 2);
    let serve = ["--memory", "m=1M", "--transport", "rdma", "--device", "siw1"];
    let mut server = Server::start_at("10.0.0.2:0", &serve);
    let place = server.at("m");
    let rdma = ["--transport", "rdma", "--device", "siw0"];
    let put = [&["put", &file, &place, "--retries", "20"], &rdma[..]].concat();
    run(&put).done();
    server.process.kill();
    let client = Client::start(&put);
    let _server = server.restart(&serve);
    client.end().done();
    let copy = folder.name("copy");
    run(&[&["get", &place, &copy], &rdma[..]].concat()).done();
    assert!(fs::read(&file).unwrap() == fs::read(&copy).unwrap(), "other bytes came back");
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
