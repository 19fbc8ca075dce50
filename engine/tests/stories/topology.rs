//! NICs near to memory, and NIC pairs near to both ends of a transfer.

use handfast::topology::{
    Location, MATRIX_BYTES_MAX, MATRIX_NICS_MAX, Machine, MatrixError, PriorityMatrix,
    SEGMENT_REGIONS_MAX, TransferLocations,
};
use proptest::prelude::*;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Two sockets, each with a NIC and a GPU behind one switch, and a second NIC on the first socket
/// at its own root port.
fn two_sockets() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let at = root.path();
    for (node, cpus, distance) in [(0, "0-15", "10 21"), (1, "16-31", "21 10")] {
        put(at, &format!("sys/devices/system/node/node{node}/cpulist"), cpus);
        put(at, &format!("sys/devices/system/node/node{node}/distance"), distance);
    }
    gpu(at, "pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0", 0);
    gpu(at, "pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:00.0", 1);
    nic(at, "mlx5_0", "pci0000:10/0000:10:01.0/0000:11:01.0/0000:13:00.0", 0, "4: ACTIVE");
    nic(at, "mlx5_1", "pci0000:20/0000:20:01.0/0000:21:00.0", 0, "4: ACTIVE");
    nic(at, "mlx5_2", "pci0000:80/0000:80:01.0/0000:81:01.0/0000:83:00.0", 1, "4: ACTIVE");
    nic(at, "mlx5_3", "pci0000:80/0000:80:02.0/0000:84:00.0", 1, "1: DOWN");
    root
}

fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("{text}\n")).unwrap();
}

fn function(root: &Path, way: &str, numa: i32, class: &str, vendor: &str) {
    let folder = format!("sys/devices/{way}");
    put(root, &format!("{folder}/numa_node"), &numa.to_string());
    put(root, &format!("{folder}/class"), class);
    put(root, &format!("{folder}/vendor"), vendor);
    let name = way.rsplit('/').next().unwrap();
    fs::create_dir_all(root.join("sys/bus/pci/devices")).unwrap();
    symlink(root.join(folder), root.join("sys/bus/pci/devices").join(name)).unwrap();
}

fn gpu(root: &Path, way: &str, numa: i32) {
    function(root, way, numa, "0x030200", "0x10de");
}

fn nic(root: &Path, name: &str, way: &str, numa: i32, state: &str) {
    function(root, way, numa, "0x020700", "0x15b3");
    put(root, &format!("sys/class/infiniband/{name}/ports/1/state"), state);
    let device = root.join(format!("sys/class/infiniband/{name}/device"));
    symlink(root.join(format!("sys/devices/{way}")), device).unwrap();
}

fn matrix(text: &str) -> PriorityMatrix {
    PriorityMatrix::parse(text).unwrap()
}

#[test]
fn a_machine_of_two_sockets_prefers_what_is_near() {
    let machine = Machine::discover(two_sockets().path()).unwrap();
    let expected = matrix(
        r#"{"cpu:0": [["mlx5_0", "mlx5_1"], ["mlx5_2"]],
            "cpu:1": [["mlx5_2"], ["mlx5_0", "mlx5_1"]],
            "cuda:0": [["mlx5_0"], ["mlx5_1", "mlx5_2"]],
            "cuda:1": [["mlx5_2"], ["mlx5_0", "mlx5_1"]]}"#,
    );
    assert_eq!(machine.matrix(), expected);
    let inactive = machine.nics.iter().find(|nic| nic.name == "mlx5_3").unwrap();
    assert!(!inactive.active, "a NIC without an active port is listed and in no matrix");
}

/// Accelerators are listed by number, grouped by maker.
#[test]
fn accelerators_are_listed_by_maker_and_number() {
    let root = tempfile::tempdir().unwrap();
    for bus in 10..22 {
        gpu(root.path(), &format!("pci0000:{bus}/0000:{bus}:01.0"), 0);
    }
    function(root.path(), "pci0000:05/0000:05:01.0", 0, "0x030200", "0x1002");
    let machine = Machine::discover(root.path()).unwrap();
    let locations: Vec<&str> = machine.gpus.iter().map(|gpu| &*gpu.location).collect();
    let mut expected: Vec<String> = (0..12).map(|number| format!("cuda:{number}")).collect();
    expected.push("hip:0".into());
    assert_eq!(locations, expected);
}

/// Accelerators take the numbers of their runtime, which may hide some and order them by speed.
#[test]
fn accelerators_take_the_numbers_of_their_runtime() {
    let root = two_sockets();
    function(root.path(), "pci0000:05/0000:05:01.0", 0, "0x030200", "0x1002");
    let machine = || Machine::discover(root.path()).unwrap();
    let near = |machine: Machine, place: &str| machine.matrix().nics(place).preferred;
    assert_eq!(near(machine().numbered("cuda", &[]), "cuda:0"), ["mlx5_0"]);
    let swapped = ["0000:82:00.0".to_owned(), "0000:12:00.0".to_owned()];
    let numbered = machine().numbered("cuda", &swapped);
    assert_eq!(
        numbered.gpus.iter().map(|gpu| &*gpu.location).collect::<Vec<_>>(),
        ["cuda:0", "cuda:1", "hip:0"]
    );
    assert_eq!(near(numbered.clone(), "cuda:0"), ["mlx5_2"]);
    assert_eq!(near(numbered, "cuda:1"), ["mlx5_0"]);
    let one = machine().numbered("cuda", &swapped[..1]);
    assert_eq!(one.gpus.len(), 2, "the other one is hidden");
    assert_eq!(near(one, "cuda:0"), ["mlx5_2"]);
}

/// An accelerator whose socket has no NIC takes the nearest one.
#[test]
fn accelerator_without_local_nic_takes_nearest() {
    let root = tempfile::tempdir().unwrap();
    gpu(root.path(), "pci0000:10/0000:10:01.0/0000:12:00.0", -1);
    nic(root.path(), "far", "pci0000:80/0000:80:01.0/0000:81:00.0", -1, "4: ACTIVE");
    nic(root.path(), "near", "pci0000:10/0000:10:02.0/0000:13:00.0", -1, "4: ACTIVE");
    let nics = Machine::discover(root.path()).unwrap().matrix().nics("cuda:0");
    assert_eq!((nics.preferred, nics.available), (vec!["near".into()], vec!["far".into()]));
}

#[test]
fn a_software_device_lies_where_the_interface_below_it_does() {
    let root = two_sockets();
    let at = root.path();
    put(at, "sys/class/infiniband/rxe0/ports/1/state", "4: ACTIVE");
    put(at, "sys/class/infiniband/rxe0/parent", "eth7");
    put(at, "sys/class/net/eth7/device/numa_node", "1");
    let machine = Machine::discover(at).unwrap();
    let rxe = machine.nics.iter().find(|nic| nic.name == "rxe0").unwrap();
    assert_eq!(rxe.numa, Some(1));
    assert!(machine.matrix().nics("cpu:1").preferred.contains(&"rxe0".to_owned()));
}

#[test]
fn a_machine_that_tells_nothing_has_one_node_and_no_nics() {
    let machine = Machine::discover(tempfile::tempdir().unwrap().path()).unwrap();
    assert_eq!((machine.nodes.len(), machine.nics.len(), machine.gpus.len()), (1, 0, 0));
    assert!(machine.matrix().nics("cpu:0").is_empty());
}

#[test]
fn a_listing_that_cannot_be_read_is_an_error_that_names_it() {
    let root = tempfile::tempdir().unwrap();
    put(root.path(), "sys/devices/system/node", "a file in place of a folder");
    let error = Machine::discover(root.path()).unwrap_err().to_string();
    assert!(error.contains("NUMA nodes") && error.contains("sys/devices/system/node"), "{error}");
}

#[test]
fn a_matrix_is_written_as_it_was_read() {
    let text = r#"{"cpu:0":[["mlx5_0"],["mlx5_1"]],"cuda:0":[[],["mlx5_1"]]}"#;
    assert_eq!(matrix(text).to_json(), text);
}

#[test]
fn what_is_no_matrix_is_refused_with_what_is_wrong_and_where() {
    let problems = [
        ("[]", "not a JSON object"),
        ("{", "not a JSON object"),
        (r#"{"cpu:0": "mlx5_0"}"#, "'cpu:0' of the NIC priority matrix: its value is not a list"),
        (r#"{"cpu:0": [["a"]]}"#, "not a pair of lists"),
        (r#"{"cpu:0": [["a"], []], "cpu:1": [["b"], "c"]}"#, "'cpu:1'"),
        (r#"{"cpu:0": [[1], []]}"#, "a NIC's name is not a string, or is empty"),
        (r#"{"cpu:0": [[""], []]}"#, "a NIC's name is not a string, or is empty"),
        (r#"{"cpu:0": [["a"], ["a"]]}"#, "a NIC is listed twice"),
    ];
    for (text, expected) in problems {
        let error = PriorityMatrix::parse(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn a_matrix_at_its_bounds_is_read_and_one_past_them_is_not() {
    let nics = |count: usize| {
        let names: Vec<String> = (0..count).map(|nic| format!("\"nic{nic}\"")).collect();
        format!("{{\"cpu:0\": [[{}], []]}}", names.join(","))
    };
    assert_eq!(matrix(&nics(MATRIX_NICS_MAX)).nics("cpu:0").len(), MATRIX_NICS_MAX);
    assert!(PriorityMatrix::parse(&nics(MATRIX_NICS_MAX + 1)).is_err());
    let padded = |bytes: usize| format!("{}{{}}", " ".repeat(bytes - 2));
    assert!(PriorityMatrix::parse(&padded(MATRIX_BYTES_MAX)).is_ok());
    let over = PriorityMatrix::parse(&padded(MATRIX_BYTES_MAX + 1));
    assert_eq!(over, Err(MatrixError::TooLong(MATRIX_BYTES_MAX + 1)));
}

#[test]
fn memory_of_an_unknown_place_may_take_every_nic() {
    let known = matrix(r#"{"cpu:0": [["b"], ["a"]], "cpu:1": [["a"], ["b", "c"]]}"#);
    for location in ["*", "cuda:9"] {
        let nics = known.nics(location);
        assert_eq!(nics.preferred, ["b", "a", "c"], "{location}");
        assert!(nics.available.is_empty());
    }
}

#[test]
fn locations_are_read_and_written_alike_and_others_refused() {
    let most = format!("segments:4096:{}", vec!["0"; SEGMENT_REGIONS_MAX].join(","));
    for text in ["*", "cpu:0", "cuda:7", "hip:1", "segments:4096:0,1,0", &most] {
        assert_eq!(text.parse::<Location>().unwrap().to_string(), text);
    }
    let over = format!("{most},0");
    for text in
        ["", "cpu", "cpu:", "cpu:-1", "cpu:x", ":0", "segments:0:0", "segments:4096:", &over]
    {
        assert!(text.parse::<Location>().is_err(), "{text}");
    }
}

#[test]
fn a_striped_buffer_lies_on_the_node_of_the_page() {
    let striped: Location = "segments:4096:0,1".parse().unwrap();
    // Five pages: two on the first node, three on the second.
    let at = |offset| striped.at(offset, 5 * 4096).to_string();
    assert_eq!([at(0), at(8191), at(8192), at(20479)], ["cpu:0", "cpu:0", "cpu:1", "cpu:1"]);
    // Less than a page for each: all on the first that has one, and nothing divides by zero.
    assert_eq!(striped.at(0, 100).to_string(), "cpu:0");
}

fn rank(own: &PriorityMatrix, peer: &PriorityMatrix, nics: (&str, &str)) -> u8 {
    rank_at(own, peer, ["cpu:0", "cpu:0"], nics)
}

fn rank_at(
    own: &PriorityMatrix,
    peer: &PriorityMatrix,
    locations: [&str; 2],
    (own_nic, peer_nic): (&str, &str),
) -> u8 {
    let [own_location, peer_location] = &locations.map(|text| text.parse::<Location>().unwrap());
    TransferLocations { own, own_location, peer, peer_location }.rank(own_nic, peer_nic)
}

/// NICs are identified by name: a list in another order means the same (TOPO-2).
#[test]
fn the_order_of_a_matrix_within_a_list_decides_nothing() {
    let own = matrix(r#"{"cpu:0": [["a0"], []]}"#);
    for peer in [r#"{"cpu:0": [["b2", "b1"], ["b0"]]}"#, r#"{"cpu:0": [["b1", "b2"], ["b0"]]}"#] {
        let ranks = ["b0", "b1", "b2", "b3"].map(|nic| rank(&own, &matrix(peer), ("a0", nic)));
        assert_eq!(ranks, [1, 0, 0, 2]);
    }
}

/// Local memory ranks NICs first, and the peer's among equally near ones.
#[test]
fn local_memory_ranks_before_remote() {
    let own = matrix(r#"{"cpu:0": [["a0", "a1"], ["a2"]]}"#);
    let peer = matrix(r#"{"cpu:0": [["b1"], ["b0"]], "cpu:1": [["b0"], ["b1"]]}"#);
    let mut pairs = vec![("a0", "b0"), ("a1", "b1"), ("a2", "b1"), ("a3", "b1")];
    pairs.sort_by_key(|pair| rank(&own, &peer, *pair));
    assert_eq!(pairs, [("a1", "b1"), ("a0", "b0"), ("a2", "b1"), ("a3", "b1")]);
    pairs.sort_by_key(|pair| rank_at(&own, &peer, ["cpu:0", "cpu:1"], *pair));
    assert_eq!(pairs[..2], [("a0", "b0"), ("a1", "b1")], "memory elsewhere at the peer");
}

/// Memory at an unknown location is near to every listed NIC.
#[test]
fn memory_at_unknown_location_is_near_every_nic() {
    let own = matrix(r#"{"cpu:0": [["a0"], ["a1"]], "cpu:1": [["a1"], ["a0"]]}"#);
    for location in ["*", "cuda:3"] {
        let of = |nic| rank_at(&own, &own, [location, "*"], (nic, "a0"));
        assert_eq!(["a0", "a1", "a2"].map(of), [0, 0, 6], "{location}");
    }
    let wildcard = matrix(r#"{"*": [["a1"], ["a0"]], "cpu:0": [["a0"], ["a1"]]}"#);
    assert_eq!(rank_at(&wildcard, &own, ["cuda:3", "*"], ("a1", "a0")), 0, "as it is listed");
    assert_eq!(rank_at(&wildcard, &own, ["cuda:3", "*"], ("a0", "a0")), 3);
}

/// A matrix restricted to some NICs keeps their order and drops empty locations.
#[test]
fn matrix_of_some_nics_keeps_their_order() {
    let all = matrix(r#"{"cpu:0": [["a", "b"], ["c"]], "cpu:1": [["c"], []]}"#);
    let some = all.of_nics(&["b".to_owned(), "a".to_owned()]);
    assert_eq!(some, matrix(r#"{"cpu:0": [["a", "b"], []]}"#));
}

proptest! {
    /// A pair is never behind one that is no nearer at either end.
    #[test]
    fn what_is_nearer_at_both_ends_ranks_first(
        own in (0u8..3, 0u8..3), peer in (0u8..3, 0u8..3),
    ) {
        let of = |nearness| ["near", "far", "other"][usize::from(nearness)];
        let known = matrix(r#"{"cpu:0": [["near"], ["far"]]}"#);
        let ranks = [(own.0, peer.0), (own.1, peer.1)]
            .map(|(own, peer)| rank(&known, &known, (of(own), of(peer))));
        if own.0 <= own.1 && peer.0 <= peer.1 {
            prop_assert!(ranks[0] <= ranks[1]);
        }
        prop_assert_eq!(ranks[0] == ranks[1], own.0 == own.1 && peer.0 == peer.1);
    }

    #[test]
    fn no_text_makes_the_reader_of_matrices_panic(text in ".{0,200}") {
        if let Ok(read) = PriorityMatrix::parse(&text) {
            prop_assert_eq!(matrix(&read.to_json()), read);
        }
    }
}
