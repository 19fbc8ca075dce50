//! `handfast topology`, on a made-up machine: two sockets, a GPU and a NIC on each.

use crate::helpers::{Folder, succeed};
use crate::output::on_terminal;
use serde_json::{Value, json};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

fn machine(folder: &Folder) -> PathBuf {
    let root = folder.join("root");
    for (node, distance) in [(0, "10 21"), (1, "21 10")] {
        let at = format!("sys/devices/system/node/node{node}");
        put(&root, &format!("{at}/cpulist"), &format!("{}-{}", node * 8, node * 8 + 7));
        put(&root, &format!("{at}/distance"), distance);
        let bus = format!("pci0000:{node}0/0000:{node}0:01.0");
        function(&root, &format!("{bus}/0000:{node}1:00.0"), node, ("0x030200", "0x10de"));
        let nic = format!("{bus}/0000:{node}2:00.0");
        function(&root, &nic, node, ("0x020700", "0x15b3"));
        let device = format!("sys/class/infiniband/a_nic_with_a_long_name_{node}");
        put(&root, &format!("{device}/ports/1/state"), "4: ACTIVE");
        symlink(root.join("sys/devices").join(nic), root.join(device).join("device")).unwrap();
    }
    root
}

/// A device of another node type, with an active port and no function on the bus.
fn soft(root: &Path, name: &str, node_type: &str) {
    let device = format!("sys/class/infiniband/{name}");
    put(root, &format!("{device}/node_type"), node_type);
    put(root, &format!("{device}/ports/1/state"), "4: ACTIVE");
}

/// Each device says how its queue pairs connect and why, in text of every width and in JSON.
#[test]
fn devices_say_how_their_queue_pairs_connect() {
    let folder = Folder::new();
    let root = machine(&folder);
    soft(&root, "iwarp0", "4: RNIC");
    let place = root.to_str().unwrap();
    let whole = succeed(&["topology", "--root", place, "--json"]);
    let whole: Value = serde_json::from_str(&whole).unwrap();
    let ways: Vec<_> =
        whole["nics"].as_array().unwrap().iter().map(|nic| &nic["connecting"]).collect();
    assert_eq!(ways[0], &json!({ "way": "out-of-band" }), "{whole}");
    assert_eq!(ways[2]["way"], "connection-manager", "{whole}");
    assert!(ways[2]["why"].as_str().unwrap().contains("iWARP"), "{whole}");
    let text = succeed(&["topology", "--root", place]);
    let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    let (out, managed) = (line("nic a_nic_with_a_long_name_0"), line("nic iwarp0"));
    assert!(out.ends_with("; queue pairs connect out of band"), "{out}");
    assert!(
        managed.contains("connect through the connection manager: the driver siw"),
        "{managed}"
    );
    let mut forced = Command::new(crate::helpers::PROGRAM);
    forced.args(["topology", "--root", place, "--json"]).env("HANDFAST_RDMA_CM", "1");
    let forced: Value = serde_json::from_slice(&forced.output().unwrap().stdout).unwrap();
    let way = &forced["nics"][0]["connecting"];
    assert_eq!(way, &json!({ "way": "connection-manager", "why": "HANDFAST_RDMA_CM is 1" }));
    assert_eq!(forced["nics"][2]["connecting"], *ways[2]);
    for columns in [40, 140] {
        let command =
            format!("HANDFAST_RDMA_CM=1 {} topology --root {place}", crate::helpers::PROGRAM);
        let Some(ended) = on_terminal(columns, &command) else { return };
        let words: Vec<_> = ended.output.split_whitespace().collect();
        let words = words.join(" ");
        assert_eq!(words.matches("manager: HANDFAST_RDMA_CM is 1").count(), 2, "{ended:?}");
        let too_long = |line: &&str| line.trim_end().chars().count() > usize::from(columns);
        assert_eq!(ended.output.lines().find(too_long), None, "{columns} columns");
    }
}

fn function(root: &Path, way: &str, node: u32, (class, vendor): (&str, &str)) {
    let at = format!("sys/devices/{way}");
    put(root, &format!("{at}/numa_node"), &node.to_string());
    put(root, &format!("{at}/class"), class);
    put(root, &format!("{at}/vendor"), vendor);
    let functions = root.join("sys/bus/pci/devices");
    std::fs::create_dir_all(&functions).unwrap();
    symlink(root.join(at), functions.join(way.rsplit('/').next().unwrap())).unwrap();
}

fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, format!("{text}\n")).unwrap();
}

fn expected() -> Value {
    let (one, other) = ("a_nic_with_a_long_name_0", "a_nic_with_a_long_name_1");
    let (here, there) = (json!([[one], [other]]), json!([[other], [one]]));
    json!({ "cpu:0": here, "cpu:1": there, "cuda:0": here, "cuda:1": there })
}

#[test]
fn matrix_is_printed_alone_or_within_the_json() {
    let folder = Folder::new();
    let root = machine(&folder);
    let root = root.to_str().unwrap();
    let matrix = succeed(&["topology", "--root", root, "--matrix"]);
    assert_eq!(serde_json::from_str::<Value>(&matrix).unwrap(), expected());
    let whole = succeed(&["topology", "--root", root, "--json"]);
    let whole: Value = serde_json::from_str(&whole).unwrap();
    assert_eq!(whole["matrix"], expected());
    assert_eq!(whole["nodes"][1]["distances"], json!([21, 10]));
    assert_eq!(whole["nics"][0]["pci"], "0000:02:00.0");
    assert_eq!(whole["gpus"][1]["location"], "cuda:1");
}

#[test]
fn a_terminal_of_any_width_shows_all_of_it() {
    let folder = Folder::new();
    let root = machine(&folder);
    for columns in [40, 80, 140] {
        let line = format!("{} topology --root {}", crate::helpers::PROGRAM, root.display());
        let Some(ended) = on_terminal(columns, &line) else { return };
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let too_long = |line: &&str| line.trim_end().chars().count() > usize::from(columns);
        assert_eq!(ended.output.lines().find(too_long), None, "{columns} columns");
        for word in ["nic a_nic_with_a_long_name_1", "gpu cuda:1", "0000:12:00.0", "for cpu:0"] {
            assert!(ended.output.contains(word), "{word} in {columns} columns: {}", ended.output);
        }
    }
}

#[test]
fn graph_joins_accelerators_and_their_nics() {
    let folder = Folder::new();
    let root = machine(&folder);
    let graph = succeed(&["topology", "--root", root.to_str().unwrap(), "--dot"]);
    assert!(graph.starts_with("digraph machine {\n") && graph.ends_with("}\n"), "{graph}");
    for place in [0, 1] {
        let near = format!("  \"cuda:{place}\" -> \"a_nic_with_a_long_name_{place}\";\n");
        assert_eq!(graph.matches(&near).count(), 1, "{graph}");
        let gpu = format!("{{ label=\"NUMA node {place}\"; \"cuda:{place}\" [label=");
        assert!(graph.contains(&gpu), "{graph}");
    }
    assert_eq!(graph.matches("->").count(), 2, "{graph}");
}
