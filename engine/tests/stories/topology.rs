//! Which NIC is near which memory, and which pair of NICs a transfer takes.

use handfast::topology::{
    Choice, Ends, Location, MATRIX_BYTES_MAX, MATRIX_NICS_MAX, Machine, MatrixError, NoPath,
    PeerNic, PriorityMatrix, SEGMENT_REGIONS_MAX,
};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Two sockets; a NIC and a GPU behind one switch on each, and a second NIC on the first socket at
/// a root port of its own.
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

#[test]
fn accelerators_are_listed_by_number_and_those_of_one_maker_together() {
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

#[test]
fn an_accelerator_whose_socket_has_no_nic_takes_the_shortest_way() {
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
        ("[]", "no JSON object"),
        ("{", "no JSON object"),
        (r#"{"cpu:0": "mlx5_0"}"#, "'cpu:0' of the NIC priority matrix: its value is no list"),
        (r#"{"cpu:0": [["a"]]}"#, "not exactly two lists"),
        (r#"{"cpu:0": [["a"], []], "cpu:1": [["b"], "c"]}"#, "'cpu:1'"),
        (r#"{"cpu:0": [[1], []]}"#, "a NIC is not named by a text"),
        (r#"{"cpu:0": [[""], []]}"#, "a NIC is not named by a text"),
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

/// The peer lists a NIC that is out of service before one that is not (TOPO-1).
#[test]
fn a_nic_out_of_service_shifts_no_place() {
    let own = matrix(r#"{"cpu:0": [["a0"], []]}"#);
    let peer = matrix(r#"{"cpu:0": [["b1"], []]}"#);
    let nics = [nic_of("b0", false), nic_of("b1", true)];
    let choice = ends(&own, &peer, &nics).choose(0, 7, |_, _| true).unwrap();
    assert_eq!((choice.peer.as_str(), choice.peer_index), ("b1", 1));
}

/// Two sides that list their NICs in different orders mean the same ones (TOPO-2).
#[test]
fn the_order_of_the_descriptor_decides_nothing() {
    let own = matrix(r#"{"cpu:0": [["a0"], []]}"#);
    let peer = matrix(r#"{"cpu:0": [["b2"], ["b0", "b1"]]}"#);
    let one = [nic_of("b0", true), nic_of("b1", true), nic_of("b2", true)];
    let other = [nic_of("b2", true), nic_of("b0", true), nic_of("b1", true)];
    for draw in 0..8 {
        let choose = |nics| ends(&own, &peer, nics).choose(0, draw, |_, _| true).unwrap().peer;
        assert_eq!([choose(&one), choose(&other)], ["b2", "b2"]);
    }
}

/// Rails that do not reach each other are not tried as long as the own rail works (TOPO-3, TOPO-4).
#[test]
fn rails_of_one_name_are_preferred_where_that_is_asked_for() {
    let both = matrix(r#"{"cpu:0": [["rail0", "rail1"], []]}"#);
    let nics = [nic_of("rail1", true), nic_of("rail0", true)];
    let ends = Ends { same_name_first: true, ..ends(&both, &both, &nics) };
    for draw in (0..64).map(|draw: u64| draw.wrapping_mul(0x9e37_79b9_7f4a_7c15)) {
        let choice = ends.choose(0, draw, |_, _| true).unwrap();
        assert_eq!(choice.own, choice.peer);
    }
    let crossed = ends.choose(0, 0, |own, peer| own != peer).unwrap();
    assert_ne!(crossed.own, crossed.peer, "a rail that is out of use is left for another");
}

#[test]
fn no_path_says_on_which_side_and_why() {
    let own = matrix(r#"{"cpu:0": [["a0", "a1"], []]}"#);
    let peer = matrix(r#"{"cpu:0": [["b0"], []]}"#);
    let (none, down) = (matrix("{}"), [nic_of("b0", false)]);
    let choose = |own, nics| ends(own, &peer, nics).choose(0, 0, |_, _| false);
    assert_eq!(choose(&none, &down), Err(NoPath::NoneOfOurs("cpu:0".into())));
    assert_eq!(choose(&own, &down), Err(NoPath::NoneOfTheirs("cpu:0".into())));
    let up = [nic_of("b0", true)];
    assert_eq!(choose(&own, &up), Err(NoPath::AllOutOfUse(2)));
}

proptest! {
    #[test]
    fn attempts_prefer_what_is_near_and_then_try_every_pair(
        own_near in 1usize..4, own_far in 0usize..3, peer_near in 1usize..4, peer_far in 0usize..3,
        draw: u64,
    ) {
        let (own, own_count) = (side("a", own_near, own_far), own_near + own_far);
        let (peer, peer_count) = (side("b", peer_near, peer_far), peer_near + peer_far);
        let names: Vec<String> = (0..peer_count).map(|nic| format!("b{nic}")).collect();
        let nics: Vec<PeerNic<'_>> = names.iter().map(|name| nic_of(name, true)).collect();
        let ends = ends(&own, &peer, &nics);
        prop_assert!(ends.choose(0, draw, |_, _| true).unwrap().preferred);
        let attempts = u32::try_from(own_count * peer_count).unwrap();
        let pairs: BTreeSet<(String, usize)> = (1..=attempts)
            .map(|attempt| ends.choose(attempt, draw, |_, _| true).unwrap())
            .map(|Choice { own, peer_index, .. }| (own, peer_index))
            .collect();
        prop_assert_eq!(pairs.len(), own_count * peer_count);
        // One pair that works is found, whichever it is and whatever the draw.
        let (last_own, last_peer) = (format!("a{}", own_count - 1), format!("b{}", peer_count - 1));
        let only = |own: &str, peer: &str| own == last_own && peer == last_peer;
        let found = ends.choose(0, draw, only).unwrap();
        prop_assert_eq!((found.own, found.peer), (last_own.clone(), last_peer.clone()));
    }

    #[test]
    fn no_text_makes_the_reader_of_matrices_panic(text in ".{0,200}") {
        if let Ok(read) = PriorityMatrix::parse(&text) {
            prop_assert_eq!(matrix(&read.to_json()), read);
        }
    }
}

fn side(prefix: &str, near: usize, far: usize) -> PriorityMatrix {
    let names = |range: std::ops::Range<usize>| {
        let names: Vec<String> = range.map(|nic| format!("\"{prefix}{nic}\"")).collect();
        names.join(",")
    };
    matrix(&format!("{{\"cpu:0\": [[{}], [{}]]}}", names(0..near), names(near..near + far)))
}

fn nic_of(name: &str, in_service: bool) -> PeerNic<'_> {
    PeerNic { name, in_service }
}

fn ends<'a>(
    own: &'a PriorityMatrix,
    peer: &'a PriorityMatrix,
    nics: &'a [PeerNic<'a>],
) -> Ends<'a> {
    Ends {
        own,
        own_location: "cpu:0",
        peer,
        peer_location: "cpu:0",
        peer_nics: nics,
        same_name_first: false,
    }
}
