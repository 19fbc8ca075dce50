//! Choice of devices, over those that a kernel could list.

use super::*;
use crate::topology::PriorityMatrix;
use handfast_transport_rdma::{Gid, Identity, Polling, SPIN_DEFAULT};

fn port(state: &str, link_layer: &str, gid: &str) -> Port {
    let gid = Gid { index: 0, text: gid.to_owned(), kind: "RoCE v2".to_owned() };
    let (state, link_layer) = (state.to_owned(), link_layer.to_owned());
    Port { number: 1, state, link_layer, gids: vec![gid] }
}

fn device(name: &str, driver: &str, port: Port) -> Device {
    let driver = driver.to_owned();
    let parent = if driver.is_empty() { "eth0".to_owned() } else { String::new() };
    let identity = Identity { driver: driver.clone(), node_type: 1, parent, ..Identity::default() };
    Device { name: name.to_owned(), driver, guid: None, identity, ports: vec![port] }
}

fn ethernet(name: &str, driver: &str, state: &str) -> Device {
    device(name, driver, port(state, "Ethernet", "0000:0000:0000:0000:0000:ffff:0a00:0001"))
}

fn names(devices: &[Device]) -> Vec<String> {
    devices.iter().map(|device| device.name.clone()).collect()
}

fn chosen(devices: &[Device], address: Option<&str>) -> Vec<Vec<String>> {
    let address = address.map(|text| mapped(text.parse().unwrap()));
    groups(ranked(names(devices), devices, 1, address), devices, 1)
}

fn error(device: &str, detail: &str) -> VerbsError {
    VerbsError {
        side: Side::Local,
        call: "open",
        code: 0,
        device: device.to_owned(),
        detail: detail.to_owned(),
        limit: None,
    }
}

/// Opens all devices but the named ones.
fn opening<'a>(bad: &'a [&str]) -> impl Fn(&String) -> Result<String, VerbsError> + 'a {
    move |name| match bad.contains(&name.as_str()) {
        true => Err(error(name, "port 1 is not active")),
        false => Ok(name.clone()),
    }
}

/// Hardware is used without software, InfiniBand without Ethernet, and no refused device is tried
/// while another kind has one that works.
#[test]
fn unnamed_devices_of_the_best_kind_are_used() {
    let devices = [
        ethernet("rxe0", "", "ACTIVE"),
        ethernet("efa0", "efa", "ACTIVE"),
        ethernet("mlx5_0", "mlx5_core", "DOWN"),
        ethernet("mlx5_1", "mlx5_core", "ACTIVE"),
        ethernet("mlx5_2", "mlx5_core", "ACTIVE"),
        device("mlx5_3", "mlx5_core", port("ACTIVE", "InfiniBand", "fe80::1")),
    ];
    let groups = chosen(&devices, None);
    let words: Vec<_> = groups.iter().map(|group| group.join(" ")).collect();
    assert_eq!(words, ["mlx5_1 mlx5_2 mlx5_0", "mlx5_3", "rxe0", "efa0"]);
    let (opened, failures) = open_best(&groups, opening(&["mlx5_0"]));
    assert_eq!(opened, ["mlx5_1", "mlx5_2"]);
    assert_eq!(failures.len(), 1, "the dead port is reported, the other kinds are not");
    let (opened, _) = open_best(&groups, opening(&["mlx5_0", "mlx5_1", "mlx5_2"]));
    assert_eq!(opened, ["mlx5_3"]);
}

/// Lanes without rails use the first device, so it is the one with the listening address.
#[test]
fn device_with_the_listening_address_is_first() {
    let at = |name, gid| device(name, "", port("ACTIVE", "Ethernet", gid));
    let devices = [
        at("rxe0", "0000:0000:0000:0000:0000:ffff:0a00:0001"),
        at("rxe1", "0000:0000:0000:0000:0000:ffff:0a00:0002"),
    ];
    assert_eq!(chosen(&devices, Some("10.0.0.2")), [["rxe1", "rxe0"]]);
    assert_eq!(chosen(&devices, None), [["rxe0", "rxe1"]]);
}

/// The kind of a device is that of the port in use.
#[test]
fn link_layer_is_that_of_the_port_in_use() {
    let two_ports = |name, second| {
        let first = device(name, "mlx5_core", port("ACTIVE", "Ethernet", "fe80::1"));
        let second = Port { number: 2, ..port("ACTIVE", second, "fe80::2") };
        Device { ports: [first.ports, vec![second]].concat(), ..first }
    };
    let devices = [two_ports("mlx5_0", "InfiniBand"), two_ports("mlx5_1", "Ethernet")];
    let of_port = |port| groups(ranked(names(&devices), &devices, port, None), &devices, port);
    assert_eq!(of_port(1), [["mlx5_0", "mlx5_1"]]);
    assert_eq!(of_port(2), [["mlx5_0"], ["mlx5_1"]]);
}

/// A device that the kernel does not list is tried, and never more than there may be rails.
#[test]
fn unlisted_devices_are_used_up_to_the_limit() {
    let names: Vec<String> = (0..RAILS_MAX + 1).map(|number| format!("new{number}")).collect();
    let groups = groups(ranked(names.clone(), &[], 1, None), &[], 1);
    assert_eq!(groups, [&names[..RAILS_MAX]]);
}

/// A dead port among named devices takes the others down with it in no case.
#[test]
fn named_devices_that_work_are_used() {
    let devices = ["a", "b", "c"].map(str::to_owned);
    let (opened, failures) = open_all(&devices, opening(&["b"]));
    assert_eq!(opened, ["a", "c"]);
    assert_eq!(failures, [error("b", "port 1 is not active")]);
    let error = of_device(failures[0].clone());
    for part in ["our side", "opening an RDMA device", "b: port 1 is not active", "`rdma link`"] {
        assert!(error.to_string().contains(part), "{error}");
    }
}

/// If none works, the error has the words of each.
#[test]
fn error_without_a_usable_device_names_each() {
    let devices = ["a", "b"].map(str::to_owned);
    let (opened, failures) = open_all(&devices, opening(&["a", "b"]));
    assert!(opened.is_empty());
    let error = none_works(failures);
    assert_eq!((error.side(), error.stage()), (Side::Local, Stage::Device));
    for part in ["a: port 1 is not active", "b: open failed: port 1 is not active"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    assert!(none_works(Vec::new()).to_string().contains("there is no device"));
}

/// An address fits one device, and the others' lack of it is no failure.
#[test]
fn address_opens_a_single_device() {
    let devices = ["a", "b", "c"].map(str::to_owned);
    let (opened, failures) = open_first(&devices, opening(&["a"]));
    assert_eq!((opened, failures), (vec!["b".to_owned()], Vec::new()));
    let (opened, failures) = open_first(&devices, opening(&["a", "b", "c"]));
    assert_eq!((opened.len(), failures.len()), (0, 3));
}

/// A name that no device has is an error of the configuration, also in the matrix.
#[test]
fn missing_device_is_refused_by_name() {
    let known = ["rxe0", "rxe1"].map(str::to_owned);
    let named = RdmaOptions::default().with(|it| it.devices = vec!["mlx5_9".to_owned()]);
    let error = check_names(&named, &known).unwrap_err();
    assert_eq!((error.side(), error.stage()), (Side::Configuration, Stage::Device));
    assert!(error.to_string().contains("mlx5_9: there is no such device; there are: rxe0, rxe1"));
    let matrix = |text: &str| {
        let matrix = Some(PriorityMatrix::parse(text).unwrap());
        RdmaOptions::default().with(|it| it.matrix = matrix)
    };
    let error = check_names(&matrix(r#"{"cpu:0": [["rxe0"], ["mlx5_9"]]}"#), &known).unwrap_err();
    assert_eq!(error.stage(), Stage::Configuration);
    for part in ["'mlx5_9' for cpu:0", "it has: rxe0, rxe1", "handfast topology --matrix"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    assert!(check_names(&matrix(r#"{"cpu:0": [["rxe0"], ["rxe1"]]}"#), &known).is_ok());
}

/// Defaults come from the device's profile, and options replace them one by one.
#[test]
fn options_replace_the_defaults_of_the_profile() {
    let listed = [ethernet("rxe0", "", "ACTIVE"), ethernet("mlx5_0", "mlx5_core", "ACTIVE")];
    let of = |name: &str, options: &RdmaOptions| {
        let config = config(name, profile(&listed, name), options, (8, 64)).unwrap();
        (config.timeout_exponent, config.retries, config.polling)
    };
    let adaptive = Polling::Adaptive { spin: SPIN_DEFAULT };
    let default = RdmaOptions::default();
    assert_eq!(of("rxe0", &default), (16, 4, Polling::Event));
    assert_eq!(of("mlx5_0", &default), (16, 6, adaptive));
    assert_eq!(of("unlisted", &default), (16, 6, adaptive));
    let patient = default.clone().with(|it| it.timeout_exponent = Some(20));
    assert_eq!(of("mlx5_0", &patient), (20, 6, adaptive));
    let busy = default.with(|it| (it.retries, it.polling) = (Some(0), Some(Polling::Busy)));
    assert_eq!(of("rxe0", &busy), (16, 0, Polling::Busy));
}

/// TCP retransmits on devices of iWARP: the timers of RoCE are refused there, with device and options by name.
#[test]
fn timers_are_refused_on_iwarp_by_name() {
    let mut siw = ethernet("siw0", "", "ACTIVE");
    siw.identity.node_type = 4;
    let listed = [siw, ethernet("mlx5_0", "mlx5_core", "ACTIVE")];
    let of = |name, options: &RdmaOptions| {
        config(name, profile(&listed, name), options, (8, 64)).map(|config| config.retries)
    };
    let default = RdmaOptions::default();
    assert!(of("siw0", &default).is_ok());
    let timeout = default.clone().with(|it| it.timeout_exponent = Some(16));
    let both = timeout.clone().with(|it| it.retries = Some(6));
    let cases = [
        (timeout, &["leave out timeout_exponent (--ack-timeout), or name another device"][..]),
        (both, &["timeout_exponent (--ack-timeout) and retries (--retry-count)"]),
        (default.with(|it| it.retries = Some(6)), &["leave out retries (--retry-count)"]),
    ];
    for (options, words) in cases {
        assert_eq!(of("mlx5_0", &options).unwrap(), 6);
        let error = of("siw0", &options).unwrap_err();
        assert_eq!((error.side, &*error.device), (Side::Configuration, "siw0"), "{error}");
        for word in words.iter().chain(&["(siw)", "TCP"]) {
            assert!(error.to_string().contains(word), "{error}");
        }
    }
}

/// A lost device is opened under its present name, by its GUID. Where several have that, as devices
/// over one interface do, or none has, its name stays.
#[test]
fn lost_device_is_found_by_its_guid() {
    let with = |name: &str, guid| Device { guid, ..ethernet(name, "mlx5_core", "ACTIVE") };
    let listed = [with("a", Some(1)), with("b", Some(2)), with("c", Some(3)), with("d", Some(3))];
    for (device, guid, present) in [
        ("a", Some(2), Some("b")),
        ("b", Some(2), Some("b")),
        ("gone", Some(1), Some("a")),
        ("c", Some(3), Some("c")),
        ("gone", Some(9), Some("gone")),
        ("a", None, Some("a")),
        ("a", Some(9), Some("a")),
    ] {
        let guids = guid.map(|guid| (device.to_owned(), guid)).into_iter().collect();
        assert_eq!(present_name(&listed, device, &guids), present, "{device}, {guid:?}");
    }
    let guids = BTreeMap::from([("a".to_owned(), 9), ("b".to_owned(), 1)]);
    assert_eq!(present_name(&listed, "a", &guids), None, "b has the name");
    assert_eq!(present_name(&[with("x", None)], "a", &BTreeMap::new()), Some("a"));
    let own = |name| own_guid(&listed, name);
    assert_eq!((own("a"), own("c"), own("gone")), (Some(1), None, None), "shared by two");
}

/// A port of a device has the device's profile and a place of its own, as near as the device. The same
/// port twice is refused, and a port of no device.
#[test]
fn ports_of_a_device_are_nics_of_their_own() {
    for (name, place) in [
        ("mlx5_0", ("mlx5_0", 1)),
        ("mlx5_0:2", ("mlx5_0", 2)),
        ("mlx5_0:0", ("mlx5_0:0", 1)),
        ("mlx5_0:256", ("mlx5_0:256", 1)),
        ("mlx5_0:", ("mlx5_0:", 1)),
    ] {
        assert_eq!(on_port(name, 1), place);
    }
    let options = RdmaOptions::default();
    let config = config("mlx5_0:2", profile(&[], "mlx5_0"), &options, (8, 64)).unwrap();
    assert_eq!(
        (config.device.as_str(), config.system_name(), config.port),
        ("mlx5_0:2", "mlx5_0", 2)
    );
    let named = |names: &[&str]| {
        let devices = names.iter().map(|name| (*name).to_owned()).collect();
        RdmaOptions::default().with(|it| it.devices = devices)
    };
    let known = ["mlx5_0", "mlx5_1"].map(str::to_owned);
    assert!(check(&named(&["mlx5_0", "mlx5_0:2"])).is_ok());
    assert!(check(&named(&["mlx5_0", "mlx5_0:1"])).unwrap_err().to_string().contains("twice"));
    assert!(check_names(&named(&["mlx5_0:2", "mlx5_1:2"]), &known).is_ok());
    let error = check_names(&named(&["mlx5_7:2"]), &known).unwrap_err();
    assert!(error.to_string().contains("mlx5_7:2: there is no such device"), "{error}");
    let matrix = PriorityMatrix::parse(r#"{"cpu:0": [["mlx5_0"], ["mlx5_1"]]}"#).unwrap();
    let near = |names: &[&str]| with_ports(&matrix, &named(names).devices).to_json();
    let all = near(&["mlx5_0", "mlx5_0:2", "mlx5_1:2"]);
    assert_eq!(all, r#"{"cpu:0":[["mlx5_0","mlx5_0:2"],["mlx5_1","mlx5_1:2"]]}"#);
}
