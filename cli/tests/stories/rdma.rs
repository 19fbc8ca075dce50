//! Bytes over RDMA between processes: soft-RoCE in a virtual machine, rxe0 at 10.0.0.1 and rxe1 at
//! 10.0.0.2 (`cargo xtask guest`), or soft-iWARP (`--nics siw`).

mod doctor;

use crate::helpers::{Client, Ended, Folder, MIB, Server, contains, run, skipped, succeed};
use crate::rdma_engine::{guest, packets};
use crate::wires::{connects_by_manager, nics};
use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};

const RDMA: [&str; 2] = ["--transport", "rdma"];
const AUTO: [&str; 2] = ["--transport", "auto"];
const TCP: [&str; 2] = ["--transport", "tcp"];
/// Pinning pages takes its time in a machine that is emulated.
const SMALL: [&str; 2] = ["--memory", "m=1M"];

/// The NIC of servers, and of clients: other tests make and end more.
fn there() -> [&'static str; 2] {
    ["--device", nics()[1]]
}

fn here() -> [&'static str; 2] {
    ["--device", nics()[0]]
}

/// A server at the second NIC.
fn serve(options: &[&str]) -> Server {
    Server::start_at("10.0.0.2:0", &[&RDMA[..], &there(), options].concat())
}

/// A server with TCP alone.
fn serve_tcp() -> Server {
    Server::start_at("10.0.0.2:0", &[&TCP[..], &SMALL].concat())
}

/// Runs a client at the first NIC that must succeed over RDMA, with progress at most on standard error.
#[track_caller]
fn over_rdma(arguments: &[&str]) {
    succeeded(&run(&[arguments, &RDMA[..], &here()].concat()));
}

#[track_caller]
pub(crate) fn succeeded(ended: &Ended) {
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.output.contains("rdma"), "{ended:?}");
    let progress = |line: &str| line.starts_with("put: ") || line.starts_with("get: ");
    assert!(ended.errors.lines().all(progress), "{ended:?}");
}

fn same(one: &str, other: &str) -> bool {
    fs::read(one).unwrap() == fs::read(other).unwrap()
}

#[test]
fn files_of_every_size_are_put_and_come_back_the_same() {
    let Some(()) = guest() else { return };
    let folder = Folder::new();
    let server = serve(&["--memory", "m=8M"]);
    let [_, nic] = nics();
    assert!(server.lines.contains(&format!("lanes over rdma by {nic}")), "{:?}", server.lines);
    let told =
        |line: &String| line.starts_with("  on huge pages: ") && line.ends_with(" of 8.0 MiB");
    assert!(server.lines.iter().any(told), "{:?}", server.lines);
    let empty = folder.patterned("empty", 0, 0);
    succeed(&[&["put", &empty, &server.at("m")], &RDMA[..], &here()].concat());
    let copy = folder.name("copy");
    // A byte, a page and one, some slices and one, more than a chunk.
    for (seed, bytes) in [1, 4097, MIB + 1, 5 * MIB + 5].into_iter().enumerate() {
        let file = folder.patterned("file", bytes, seed as u8);
        let before = packets(nic);
        let place = server.at("m:3");
        over_rdma(&["put", &file, &place]);
        assert!(packets(nic) > before, "no packet came to {nic}");
        over_rdma(&["get", &format!("{place},{bytes}"), &copy, "--json"]);
        assert!(same(&file, &copy), "{bytes} bytes");
    }
}

#[test]
fn two_servers_take_bytes_from_each_others_nic_at_once() {
    let Some(()) = guest() else { return };
    let folder = Folder::new();
    let servers = ["10.0.0.1:0", "10.0.0.2:0"]
        .map(|listen| Server::start_at(listen, &[&RDMA[..], &SMALL].concat()));
    let files = [1, 2].map(|seed| folder.patterned(&format!("file{seed}"), MIB, seed));
    let puts = [0, 1].map(|side| {
        let (file, place) = (&files[side], servers[side].at("m"));
        let nic = nics()[1 - side];
        Client::start(&[&["put", file, &place, "--device", nic], &RDMA[..]].concat())
    });
    for put in puts {
        succeeded(&put.end());
    }
    for side in [0, 1] {
        let copy = folder.name("copy");
        over_rdma(&["get", &servers[side].at("m:0,1M"), &copy]);
        assert!(same(&files[side], &copy));
    }
}

#[test]
fn pair_without_common_transport_names_the_remedy() {
    let Some(()) = guest() else { return };
    let folder = Folder::new();
    let file = folder.patterned("file", 10, 0);
    let (plain, rdma) = (serve_tcp(), serve(&SMALL));
    let ended = run(&[&["put", &file, &plain.address], &RDMA[..]].concat());
    ended.failed(13, &[&plain.address, "offers no lane over RDMA", "--transport rdma` or `auto`"]);
    let ended = run(&[&["put", &file, &rdma.address], &TCP[..]].concat());
    ended.failed(13, &[&rdma.address, "only lanes over RDMA", "--transport auto` at the peer"]);
    let absent = ["put", &file, &rdma.address, "--device", "mlx5_9"];
    let ended = run(&[&absent[..], &RDMA[..]].concat());
    let listed = format!("there is no such device; there are: {}, {}", nics()[0], nics()[1]);
    ended.failed(13, &["mlx5_9", &listed, "`rdma link`"]);
}

#[test]
fn auto_shares_memory_or_uses_rdma_or_explains_tcp() {
    let Some(()) = guest() else { return };
    let folder = Folder::new();
    let file = folder.patterned("file", MIB, 1);
    let auto = Server::start_at("10.0.0.2:0", &[&AUTO[..], &there(), &SMALL].concat());
    let lines = &auto.lines;
    let lanes = format!("lanes over shm and rdma and tcp by {}", nics()[1]);
    assert!(lines.contains(&lanes), "{lines:?}");
    let put = ["put", &file, &auto.address, "--json"];
    let output = succeed(&[&put[..], &RDMA, &here()].concat());
    assert!(output.contains(r#""transport":"rdma""#) && !output.contains("fallbacks"), "{output}");
    // The devices carry bytes until the channel is there.
    let output = succeed(&[&put[..], &AUTO, &here()].concat());
    let used = ["rdma", "shm"].map(|name| output.contains(&format!(r#""transport":"{name}""#)));
    assert!(used.contains(&true) && !output.contains("fallbacks"), "{output}");
    let output = succeed(&[&put[..], &TCP].concat());
    assert!(output.contains(r#""transport":"tcp""#), "{output}");

    let plain = serve_tcp();
    let ended = run(&[&["put", &file, &plain.address, "--json"], &AUTO[..], &here()].concat());
    falls_back(&ended, &[&plain.address, "the peer's side", "the handshake", "offers no lane"]);
}

/// Without --device a server has all NICs, the one with its address first, for clients with one. The GIDs of iWARP are no
/// addresses, by which its NICs are not ranked.
#[test]
fn server_without_named_nics_uses_all() {
    let Some(()) = guest() else { return };
    let folder = Folder::new();
    let file = folder.patterned("file", MIB, 1);
    let server = Server::start_at("10.0.0.2:0", &[&RDMA[..], &SMALL].concat());
    let line = server.lines.iter().find_map(|line| line.strip_prefix("lanes over rdma by "));
    let devices: Vec<_> = line.expect("a line of devices").split(" and ").collect();
    let [first, second] = nics();
    let has_addresses = first != "siw0";
    assert!(!has_addresses || devices[0] == second, "{devices:?}");
    assert!([first, second].iter().all(|it| devices.contains(it)), "{devices:?}");
    over_rdma(&["put", &file, &server.address]);
}

#[test]
fn rdma_server_warns_once_of_tcp_clients() {
    let Some(()) = guest() else { return };
    let folder = Folder::new();
    let file = folder.patterned("file", 10, 1);
    let mut command = Command::new(crate::helpers::PROGRAM);
    command.args(["serve", "--until-stdin-ends", "--open", "--listen", "10.0.0.2:0"]).args(SMALL);
    command.args(AUTO).args(there()).stderr(Stdio::piped());
    let mut server = Server::spawn(command);
    for _ in 0..3 {
        succeed(&[&["put", &file, &server.address], &TCP[..]].concat());
    }
    let mut errors = server.process.0.stderr.take().unwrap();
    drop(server);
    let mut text = String::new();
    errors.read_to_string(&mut text).unwrap();
    let warnings = text.lines().filter(|line| line.starts_with("warning: "));
    let of_lanes = warnings.filter(|line| !line.contains("--open"));
    assert_eq!(of_lanes.count(), 1, "{text}");
}

#[test]
fn auto_falls_back_between_unreachable_nics() {
    let Some(()) = guest() else { return };
    if connects_by_manager() {
        return skipped("the connection manager chooses the GID");
    }
    let folder = Folder::new();
    let file = folder.patterned("file", MIB, 1);
    // Pinned to these addresses, neither NIC fits the other.
    let pinned = ["--gid", "10.0.0.2"];
    let server = Server::start_at("10.0.0.2:0", &[&AUTO[..], &SMALL, &pinned].concat());
    let gid = fs::read_to_string("/sys/class/infiniband/rxe0/ports/1/gids/0").unwrap();
    let put = ["put", &file, &server.address, "--json", "--device", "rxe0", "--gid", gid.trim()];
    let ended = run(&[&put[..], &AUTO[..]].concat());
    falls_back(&ended, &[&server.address, "the handshake", "failed: rxe0: "]);
    let ended = run(&[&put[..], &RDMA[..]].concat());
    assert!(matches!(ended.code, Some(9 | 13)), "{ended:?}");
    assert!(ended.errors.contains("error: ") && !ended.errors.contains("panicked"), "{ended:?}");
}

#[test]
fn missing_library_fails_rdma_and_auto_falls_back() {
    let Some(()) = guest() else { return };
    let folder = Folder::new();
    let file = folder.patterned("file", MIB, 1);
    // It shares no memory with a client.
    let server = serve_tcp();
    let put = ["put", &file, &server.address, "--json"];
    let without = |transport: &[&str]| without_library(&[&put[..], transport].concat());
    without(&RDMA).failed(13, &["libibverbs.so.1", "install rdma-core"]);
    // A machine without the library is expected to use TCP: no warning, and the reason in JSON.
    let ended = without(&AUTO);
    assert!(ended.code == Some(0) && ended.errors.is_empty(), "{ended:?}");
    let parts = [r#""side":"local""#, "opening an RDMA device", "libibverbs.so.1", r#""cure":""#];
    contains(&ended.output, &parts);
}

/// Runs the program where the library is out of reach.
fn without_library(arguments: &[&str]) -> Ended {
    let script = "for library in /usr/lib/*/libibverbs.so.1; do \
                  mount --bind /dev/null $library; done; exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh", crate::helpers::PROGRAM]).args(arguments);
    Client::spawn(command).end()
}

/// It succeeded without RDMA, and said so with all of `parts`, to people and in JSON.
#[track_caller]
fn falls_back(ended: &Ended, parts: &[&str]) {
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let warning = ended.errors.lines().find(|line| line.starts_with("warning: "));
    let warning = warning.unwrap_or_else(|| panic!("no warning in {ended:?}"));
    contains(warning, parts);
    contains(warning, &["lanes run over TCP, not RDMA", "`--transport tcp`"]);
    assert!(!ended.output.contains(r#""transport":"rdma""#), "{ended:?}");
    let parts = [r#""fallbacks":[{""#, r#""side":""#, r#""stage":""#, r#""cure":""#];
    contains(&ended.output, &parts);
}

#[test]
fn the_benchmark_runs_over_rdma_and_shows_that_it_did() {
    let Some(()) = guest() else { return };
    let bench = ["bench", "--device", nics()[0], "--size", "64K", "--batch", "1,8"];
    let short = ["--rounds", "1", "--duration", "100ms"];
    let ended = run(&[&bench[..], &short, &RDMA].concat()).done();
    let table = ended.output;
    assert!(table.contains("over rdma;"), "{table}");
    let rows = table.lines().filter(|line| line.starts_with("write ") || line.starts_with("read "));
    assert_eq!(rows.count(), 4, "{table}");
}

/// The steps of a smoke test, as pairs of name and verdict.
#[track_caller]
fn steps(ended: &Ended) -> Vec<(String, String)> {
    let report: serde_json::Value = serde_json::from_str(&ended.output).unwrap();
    assert_eq!(report["passed"], ended.code == Some(0), "{ended:?}");
    let steps = report["steps"].as_array().unwrap().iter();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    steps.map(|step| (text(&step["name"]), text(&step["verdict"]))).collect()
}

#[track_caller]
fn assert_steps(ended: &Ended, expected: &[(&str, &str)]) {
    let steps = steps(ended);
    let steps: Vec<_> = steps.iter().map(|(name, verdict)| (&**name, &**verdict)).collect();
    assert_eq!(steps, expected, "{ended:?}");
}

/// The step of a smoke test that connects through the connection manager.
fn manager_step() -> (&'static str, &'static str) {
    ("rdma-cm", if connects_by_manager() { "pass" } else { "skipped" })
}

#[test]
fn smoke_of_two_nics_passes_every_step() {
    let Some(()) = guest() else { return };
    let [one, other] = nics();
    let before = packets(other);
    let ended = run(&["smoke", "--loopback", "--json"]);
    let first = [("devices", "pass"), manager_step()];
    let passed = ["handshake", "bytes", "reestablish"].map(|name| (name, "pass"));
    let rest = [("reset", "recorded"), ("restart", "pass")];
    assert_steps(&ended, &[&first[..], &passed, &rest].concat());
    let both = format!("{one} and {other}");
    if !connects_by_manager() {
        contains(&ended.output, &[&format!("{both} connect out of band"), "RoCE v2"]);
    }
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(packets(other) > before + 1024, "few packets came to {other}");
    let profile = format!(r#""profile":"{}""#, one.trim_end_matches('0'));
    for part in [&*profile, &both, "10.0.0.2", "the restart was noticed"] {
        assert!(ended.output.contains(part), "'{part}' is missing in: {}", ended.output);
    }
}

#[test]
fn smoke_of_one_nic_runs_alone_and_against_a_server() {
    let Some(()) = guest() else { return };
    let [one, other] = nics();
    let ended = run(&["smoke", "--loopback", "--device", other]).done();
    contains(&ended.output, &[&format!("{other} to itself")]);
    let server = serve(&SMALL);
    let ended = run(&["smoke", "--peer", &server.at("m"), "--device", one, "--json"]);
    let passed = ["handshake", "bytes", "reopen"].map(|name| (name, "pass"));
    let first = [("devices", "pass"), manager_step()];
    assert_steps(&ended, &[&first[..], &passed].concat());
    let way = ended.output.contains("through the peer's connection manager");
    assert_eq!(way, connects_by_manager(), "{ended:?}");
    let plain = serve_tcp();
    let ended = run(&["smoke", "--peer", &plain.at("m")]);
    let ended = ended.failed(13, &[&plain.address, "offers no lane over RDMA", "--transport rdma"]);
    assert!(ended.output.contains("skipped  reopen"), "{ended:?}");
}

#[test]
fn smoke_without_device_or_library_names_the_lack() {
    let Some(()) = guest() else { return };
    let smoke = ["smoke", "--loopback", "--json"];
    let ended = run(&[&smoke[..], &["--device", "mlx5_9"]].concat());
    ended.failed(
        13,
        &[
            "the configuration of both sides",
            "mlx5_9",
            &format!("there are: {}, {}", nics()[0], nics()[1]),
            "`rdma link`",
        ],
    );
    let ended = without_library(&smoke);
    let ended = ended.failed(13, &["our side", "libibverbs.so.1", "install rdma-core"]);
    assert_eq!(steps(&ended)[0], ("devices".to_owned(), "fail".to_owned()));
    assert!(steps(&ended)[1..].iter().all(|(_, verdict)| verdict == "skipped"), "{ended:?}");
}
