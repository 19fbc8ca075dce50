//! A machine whose RDMA devices are soft-iWARP's, over which no lane can be had, as over eRDMA's in
//! standard mode: a virtual machine, siw0 at 10.0.0.1 and siw1 at 10.0.0.2
//! (`cargo xtask guest --nics siw`).

use crate::helpers::{Folder, MIB, Server, contains, run, skipped};
use std::fs;

/// Parts of each message about it: device, driver, failing step and remedy.
const NAMED: [&str; 5] = ["siw0", "siw", "ibv_modify_qp(RTS)", "EINVAL", "rdma link add"];

/// Whether the test can run here. A guest built for it must have the devices.
fn guest() -> Option<()> {
    let has_nics = std::env::var("HANDFAST_NICS").is_ok_and(|nics| nics == "siw");
    if !has_nics {
        skipped("it needs siw0 and siw1 of a guest");
    }
    has_nics.then_some(())
}

#[test]
fn auto_names_the_refusing_device_and_step() {
    let Some(()) = guest() else { return };
    let folder = Folder::new();
    let file = folder.patterned("file", MIB, 1);
    let server = Server::start_at("10.0.0.2:0", &["--memory", "m=1M", "--transport", "auto"]);
    assert!(!server.lines.iter().any(|line| line.contains("rdma")), "{:?}", server.lines);
    let put = ["put", &file, &server.address, "--json", "--transport", "auto", "--device", "siw0"];
    let ended = run(&put).done();
    let warning = ended.errors.lines().find(|line| line.starts_with("warning: "));
    let warning = warning.unwrap_or_else(|| panic!("no warning in {ended:?}"));
    contains(warning, &NAMED);
    contains(warning, &["lanes run over TCP, not RDMA"]);
    assert!(!ended.output.contains(r#""transport":"rdma""#), "{}", ended.output);
    let copy = folder.name("copy");
    run(&["get", &server.at("m"), &copy, "--transport", "auto", "--device", "siw0"]).done();
    assert!(fs::read(&file).unwrap() == fs::read(&copy).unwrap(), "other bytes came back");
}

#[test]
fn rdma_alone_fails_and_names_device_driver_step_and_cure() {
    let Some(()) = guest() else { return };
    let folder = Folder::new();
    let file = folder.patterned("file", 10, 0);
    let server = Server::start_at("10.0.0.2:0", &["--memory", "m=1M"]);
    let put = ["put", &file, &server.address, "--transport", "rdma", "--device", "siw0"];
    run(&put).failed(13, &NAMED);
    let serve =
        ["serve", "--open", "--listen", "10.0.0.1:0", "--memory", "m=1M", "--transport", "rdma"];
    let ended = run(&[&serve[..], &["--device", "siw0"]].concat());
    ended.failed(13, &NAMED);
}
