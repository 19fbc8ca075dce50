use super::*;

fn of(set: &[(&str, &str)]) -> Result<Environment, Invalid> {
    Environment::of(set.iter().map(|(name, value)| ((*name).into(), (*value).into())))
}

#[test]
fn ranges_of_values_are_exact_and_named() {
    for (name, good, wrong, range) in [
        ("MC_TCP_STATUS_TIMEOUT_SEC", ["1", "3600"], ["0", "3601"], "1 to 3600 s"),
        ("MC_TCP_LANES_PER_PEER", ["1", "16"], ["0", "17"], "1 to 16"),
        ("MC_TCP_MAX_CONNECTIONS_PER_PEER", ["1", "16"], ["0", "17"], "1 to 16"),
        (PORT_MIN, ["1024", "17000"], ["1023", "65536"], "1024 to 65535"),
        (PORT_MAX, ["15000", "65535"], ["1023", "65536"], "1024 to 65535"),
        ("MC_MAX_PRC_PORT", ["15000", "65535"], ["1023", "65536"], "1024 to 65535"),
        ("MC_TRANSFER_TIMEOUT", ["0", "86400"], ["-1", "86401"], "0 to 86400 s"),
        ("MC_HANDSHAKE_CONNECT_TIMEOUT", ["1", "3599"], ["0", "3600"], "1 to 3599 s"),
        ("MC_IB_PORT", ["1", "255"], ["0", "256"], "1 to 255"),
        ("MC_GID_INDEX", ["0", "255"], ["-1", "256"], "0 to 255"),
        ("MC_MTU", ["512", "4096"], ["256", "1500"], "512, 1024, 2048, 4096"),
        ("MC_IB_TC", ["0", "255"], ["-1", "256"], "0 to 255"),
        ("MC_IB_SL", ["0", "15"], ["-1", "16"], "0 to 15"),
        ("MC_SLICE_SIZE", ["1", "1048576"], ["0", "-1"], "1 to"),
        ("MC_TCP_PROTO", ["1", "2"], ["3", ""], "one of 1, 2"),
        (
            "MC_LOG_LEVEL",
            ["TRACE", "ERROR"],
            ["DEBUG", "info"],
            "one of TRACE, INFO, WARNING, ERROR",
        ),
        ("MC_METADATA_CLUSTER_ID", ["a", "b/"], ["", "a\nb"], "a text of 1 to 256 bytes"),
    ] {
        for value in good {
            assert!(of(&[(name, value)]).is_ok(), "{name}={value}");
        }
        for value in wrong.into_iter().chain(["4 apples".repeat(99).as_str()]) {
            let refused = of(&[(name, value)]).expect_err(name).to_string();
            assert!(refused.contains(name) && refused.contains(range), "{refused}");
        }
    }
}

#[test]
fn what_is_set_has_its_effect_and_says_where_it_came_from() {
    let set = of(&[
        ("MC_TCP_PROTO", "1"),
        ("MC_TCP_STATUS_TIMEOUT_SEC", "7"),
        ("MC_TCP_LANES_PER_PEER", "2"),
        ("MC_METADATA_CLUSTER_ID", "east"),
        ("MC_IB_PORT", "2"),
        ("MC_NUM_QP_PER_EP", "4"),
        ("MC_PKEY_INDEX", "300"),
        ("MC_IB_PCI_RELAXED_ORDERING", "0"),
        (ACCEPT_FORKED_MEMORY, "1"),
        ("HANDFAST_RDMA_CM", "1"),
        ("HANDFAST_RDMA_CM_PORT", "18515"),
    ]);
    let set = set.unwrap();
    let mooncake = set.mooncake();
    assert_eq!(mooncake.version_max, ProtocolVersion::One);
    assert_eq!((mooncake.status_timeout, mooncake.lanes_per_peer), (Duration::from_secs(7), 2));
    let rdma = set.rdma(RdmaOptions::default());
    assert_eq!((rdma.port, rdma.queue_pairs), (2, Some(4)));
    assert_eq!(rdma.partition_key, PartitionKey::Index(300));
    assert!(rdma.accepts_forked_memory && !rdma.accepts_exposed_memory);
    assert!(!rdma.relaxed_ordering && rdma.connection_manager);
    assert_eq!(rdma.connection_manager_port, 18_515);
    let off = of(&[("HANDFAST_RDMA_CM", "0")]).unwrap();
    assert!(!off.rdma(RdmaOptions::default()).connection_manager);
    for word in ["1", "2"] {
        let set = of(&[("MC_IB_PCI_RELAXED_ORDERING", word)]).unwrap();
        assert!(set.rdma(RdmaOptions::default()).relaxed_ordering);
    }
    let settings = set.settings();
    let source = |name| settings.iter().find(|it| it.name == name).map(|it| it.source);
    assert_eq!(
        (source("MC_TCP_PROTO"), source("MC_SLICE_SIZE")),
        (Some("environment"), Some("default"))
    );
    assert_eq!(settings.len(), VARIABLES.len());
}

/// As in Mooncake, a short timeout is the shortest.
#[test]
fn timeout_has_a_minimum() {
    let timeout = |seconds| of(&[("MC_TRANSFER_TIMEOUT", seconds)]).unwrap().transfer_timeout();
    let seconds = |number| Some(Duration::from_secs(number));
    assert_eq!([timeout("0"), timeout("5"), timeout("6")], [5, 5, 6].map(seconds));
    assert_eq!(of(&[]).unwrap().transfer_timeout(), None);
}

#[test]
fn defaults_that_are_shown_are_those_that_apply() {
    let (none, shown) = (of(&[]).unwrap(), |name| {
        VARIABLES.iter().find(|it| it.name == name).map(|it| it.default).unwrap()
    });
    let mooncake = none.mooncake();
    assert_eq!(shown("MC_TCP_STATUS_TIMEOUT_SEC"), mooncake.status_timeout.as_secs().to_string());
    assert_eq!(shown("MC_TCP_LANES_PER_PEER"), mooncake.lanes_per_peer.to_string());
    assert_eq!(shown("MC_TCP_PROTO"), "2");
    let limits = handfast::EngineLimits::default();
    let timing = handfast::EngineTiming::default();
    assert_eq!(shown("MC_SLICE_SIZE"), limits.slice_bytes_max.to_string());
    assert_eq!(shown("MC_HANDSHAKE_CONNECT_TIMEOUT"), timing.call_timeout.as_secs().to_string());
    let rdma = RdmaOptions::default();
    assert_eq!(shown("MC_IB_PORT"), rdma.port.to_string());
    assert_eq!(shown("MC_MTU"), rdma.mtu_bytes_max.to_string());
    assert_eq!(shown("MC_IB_TC"), rdma.traffic_class.to_string());
    assert_eq!(shown("MC_IB_SL"), rdma.service_level.to_string());
    assert_eq!(shown("MC_IB_PCI_RELAXED_ORDERING") != "0", rdma.relaxed_ordering);
}

#[test]
fn unused_and_unknown_variables_are_explained() {
    let set = of(&[
        ("MC_USE_IPV6", "9"),
        ("MC_PIGEON", "1"),
        ("MC_SLICESIZE", "1"),
        ("HANDFAST_ENCRYPT_LANE", "1"),
        ("HANDFAST_REGION_MAX", "9"),
        ("HANDFAST_FABRIC", "1"),
        ("HOME", "/"),
    ]);
    let set = set.unwrap();
    let told: Vec<_> = set.without_effect().into_iter().filter(|it| it.set).collect();
    assert_eq!((told.len(), told[0].name), (1, "MC_USE_IPV6"));
    assert!(told[0].why.contains("both families"));
    let unknown: Vec<_> = set.unknown.iter().map(ToString::to_string).collect();
    assert_eq!(
        unknown,
        [
            "HANDFAST_ENCRYPT_LANE is not a known variable; did you mean HANDFAST_ENCRYPT_LANES?",
            "HANDFAST_REGION_MAX is not a known variable; did you mean HANDFAST_REGIONS_MAX?",
            "MC_PIGEON is not a known variable",
            "MC_SLICESIZE is not a known variable; did you mean MC_SLICE_SIZE?"
        ]
    );
    assert!(why_without_effect("MC_STORE_MEMCPY").is_some_and(|why| why.contains("Store")));
    for variable in &VARIABLES {
        assert!(why_without_effect(variable.name).is_none(), "{}", variable.name);
    }
}

/// A secret in the place of the name of its file is shown nowhere.
#[test]
fn secret_in_the_place_of_a_file_is_not_shown() {
    let secret = "0123456789abcdef".repeat(4);
    for (value, shown) in [
        (&*format!("fleet-1 {secret}"), "..."),
        (&*format!("psk:{secret}"), "..."),
        ("psk:/etc/handfast/keys-of-the-first-fleet", "psk:/etc/handfast/keys-of-the-first-fleet"),
        ("psk:keys", "psk:keys"),
    ] {
        let set = of(&[(AUTH, value)]).unwrap();
        let settings = set.settings();
        let setting = settings.iter().find(|setting| setting.name == AUTH);
        assert_eq!(setting.map(|setting| &*setting.value), Some(shown));
    }
    let refused = of(&[(AUTH, &*format!("fleet-1 {secret}\n"))]).err().unwrap();
    assert!(!refused.to_string().contains(&secret), "{refused}");
}

/// A program that uses no binding starts with any value of their variables.
#[test]
fn values_that_the_bindings_refuse_are_warnings() {
    let set = of(&[("HANDFAST_TRANSPORT", "RDMA"), ("HANDFAST_REGIONS_MAX", "0")]).unwrap();
    let warned: Vec<_> = set.warnings_of_bindings().collect();
    assert_eq!(
        warned,
        [
            "in Python and C, HANDFAST_TRANSPORT is 'RDMA'; it must be one of tcp, rdma, shm, auto",
            "in Python and C, HANDFAST_REGIONS_MAX is '0'; it must be 1 to 131072"
        ]
    );
    let set = of(&[("HANDFAST_TRANSPORT", ""), ("HANDFAST_REGIONS_MAX", " 5000")]).unwrap();
    assert_eq!(set.warnings_of_bindings().count(), 0);
    assert_eq!(set.get("HANDFAST_REGIONS_MAX").map(String::as_str), Some("5000"));
}

#[test]
fn the_documentation_has_every_variable_and_its_values() {
    let page = include_str!("../../docs/configuration.md");
    for Variable { name, values, .. } in &VARIABLES {
        let row = page.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
        assert!(row.is_some_and(|row| row.contains(&values.to_string())), "{name}: {values}");
    }
    for known in &*WITHOUT_EFFECT {
        let names: Vec<_> = known.names.iter().map(|name| format!("`{name}`")).collect();
        let row = format!("| {} | {} |", names.join(", "), known.why);
        assert!(page.contains(&row), "{row}");
    }
}

#[test]
fn ports_are_a_range_whose_ends_are_in_order() {
    let ports = |set: &[(&str, &str)]| of(set).and_then(|set| set.ports());
    assert_eq!(ports(&[]), Ok(None));
    assert_eq!(ports(&[(PORT_MIN, "16000")]), Ok(Some(16_000..=17_000)));
    assert_eq!(ports(&[(PORT_MIN, "20000"), (PORT_MAX, "20000")]), Ok(Some(20_000..=20_000)));
    let wrong = ports(&[(PORT_MIN, "20001"), (PORT_MAX, "20000")]).unwrap_err().to_string();
    assert!(wrong.contains("MC_MIN_RPC_PORT is 20001 and MC_MAX_RPC_PORT is 20000"), "{wrong}");
    assert!(ports(&[(PORT_MAX, "14999")]).is_err());
    let older = [("MC_MIN_PRC_PORT", "16000"), ("MC_MAX_PRC_PORT", "16001")];
    assert_eq!(ports(&older), Ok(Some(16_000..=16_001)));
    let both = [(PORT_MIN, "15500"), ("MC_MIN_PRC_PORT", "16000")];
    assert_eq!(ports(&both), Ok(Some(15_500..=17_000)), "the newer name goes before");
}

#[test]
fn a_password_is_shown_to_nobody_and_certificates_go_with_keys() {
    let set =
        of(&[("ETCDCTL_USER", "ann:secret"), ("ETCDCTL_CACERT", "/ca"), (ETCD_CERTIFICATE, "/c")]);
    let set = set.unwrap();
    let shown = format!("{set:?}");
    assert!(shown.contains("ann:...") && !shown.contains("secret"), "{shown}");
    let settings = set.settings();
    let shown = settings.iter().find(|it| it.name == "ETCDCTL_USER").unwrap();
    assert_eq!((&*shown.value, shown.source), ("ann:...", "environment"));
    assert!(set.etcd_credentials().is_err_and(|it| it.to_string().contains("go together")));
    let wrong = of(&[("ETCDCTL_USER", "secret")]).err().unwrap().to_string();
    assert!(wrong.contains("must be NAME:PASSWORD") && !wrong.contains("secret"), "{wrong}");
    let set =
        of(&[("ETCDCTL_USER", "ann:a:b"), (ETCD_CERTIFICATE, "/c"), (ETCD_KEY, "/k")]).unwrap();
    let credentials = set.etcd_credentials().unwrap();
    assert_eq!(credentials.user, Some(("ann".into(), "a:b".into())));
    assert_eq!(credentials.tls.identity, Some(("/c".into(), "/k".into())));
    assert_eq!(credentials.tls.authority, None);
}

#[test]
fn redis_credentials_come_from_the_environment() {
    let set = of(&[(REDIS_PASSWORD, "secret"), (REDIS_DATABASE, "255")]).unwrap();
    let credentials = set.redis_credentials();
    assert_eq!(credentials.user, Some((String::new(), "secret".to_owned())));
    assert_eq!(credentials.database, Some(255));
    let shown = set.settings().into_iter().find(|it| it.name == REDIS_PASSWORD).unwrap();
    assert_eq!((&*shown.value, shown.source), ("...", "environment"));
    let set = of(&[(REDIS_PASSWORD, "a:b"), (REDIS_USER, "ann")]).unwrap();
    assert_eq!(set.redis_credentials().user, Some(("ann".to_owned(), "a:b".to_owned())));
    assert_eq!(of(&[(REDIS_USER, "ann")]).unwrap().redis_credentials().user, None);
    for value in ["256", "-1", "x"] {
        let wrong = of(&[(REDIS_DATABASE, value)]).err().unwrap();
        assert!(wrong.to_string().contains("must be 0 to 255"), "{wrong}");
    }
    let long = "x".repeat(PASSWORD_BYTES_MAX + 1);
    let wrong = of(&[(REDIS_PASSWORD, &long)]).err().unwrap();
    assert!(
        wrong.to_string().contains("a password of 1 to 512 bytes")
            && !wrong.to_string().contains("xx"),
        "{wrong}"
    );
}
