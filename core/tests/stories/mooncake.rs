//! Mooncake messages apart from the handshake: limits, hostile texts, random values.

use handfast_core::NodeName;
use handfast_core::mooncake::*;
use handfast_core::transfer::Direction;
use handfast_core::wire::{DEVICES_PUBLISHED_MAX, DescriptorError, DeviceDescriptor, Message};
use handfast_core::wire::{FRAME_BYTES_DEFAULT_MAX, MessageError, NodeDescriptor, PlainMessage};
use proptest::prelude::*;

#[test]
fn null_is_a_node_that_has_nothing_to_say_and_not_a_broken_one() {
    assert_eq!(SegmentDescriptor::decode(NULL_ANSWER), Err(SegmentError::Null));
    assert_eq!(NodeDescriptor::decode(NULL_ANSWER), Err(DescriptorError::Null));
    assert_eq!(PlainMessage::decode(NULL_ANSWER), Err(MessageError::Null));
    assert_eq!(Message::decode(NULL_ANSWER), Err(MessageError::Null));
}

/// A segment descriptor at its limits decodes; one past any limit is refused.
#[test]
fn descriptor_past_any_limit_is_refused() {
    let whole = segment();
    assert_eq!(SegmentDescriptor::decode(&whole.encode()), Ok(whole.clone()));
    type Change = fn(&mut SegmentDescriptor);
    let past: [(&str, Change); 15] = [
        ("name", |it| it.name.push('x')),
        ("name", |it| it.name.clear()),
        ("protocol", |it| it.protocol = Protocols::One(String::new())),
        ("protocol", |it| it.protocol = Protocols::Several(vec![])),
        ("rdma_server_name", |it| it.rdma_server_name = Some("x".repeat(TEXT_BYTES_MAX + 1))),
        ("tcp_data_host", |it| it.tcp_data_host = Some("x".repeat(263))),
        ("timestamp", |it| it.timestamp = Some("x".repeat(TIMESTAMP_BYTES_MAX + 1))),
        ("devices", |it| it.devices[0].gid.clear()),
        ("devices", |it| it.devices.push(it.devices[0].clone())),
        ("priority_matrix", |it| {
            let many = (0..=MATRIX_LOCATIONS_MAX).map(|n| (format!("cpu:{n}"), Default::default()));
            it.priority_matrix = Some(many.collect());
        }),
        ("buffers.length", |it| it.buffers[0].addr = 0),
        ("buffers.length", |it| it.buffers[0].addr = u64::MAX),
        ("buffers.name", |it| it.buffers[0].name.clear()),
        ("buffers.protocol", |it| it.buffers[0].protocol = Some("x".repeat(TEXT_BYTES_MAX + 1))),
        ("buffers.rkey", |it| it.buffers[0].lkey.truncate(1)),
    ];
    for (field, change) in past {
        let mut wrong = whole.clone();
        change(&mut wrong);
        assert_eq!(SegmentDescriptor::decode(&wrong.encode()), Err(SegmentError::Field(field)));
    }
}

/// A matrix of another shape is ignored, and the descriptor decodes.
#[test]
fn matrix_of_another_shape_is_ignored() {
    let whole = segment().encode();
    let shape = r#"[[],["rxe0"]]"#;
    assert!(whole.contains(shape));
    for other in ["7", r#"[["rxe0"]]"#, r#"{"preferred":[]}"#, "null"] {
        let told = SegmentDescriptor::decode(&whole.replace(shape, other)).unwrap();
        assert_eq!(told, SegmentDescriptor { priority_matrix: None, ..segment() });
    }
}

/// Buffers up to the limit fit into a frame; one more is refused.
#[test]
fn buffers_up_to_the_limit_fit_into_a_frame() {
    let buffer = BufferDescriptor {
        addr: 1 << 46,
        length: 1 << 20,
        lkey: vec![],
        name: "a".into(),
        protocol: None,
        rkey: vec![],
    };
    let mut many = SegmentDescriptor { buffers: vec![buffer.clone(); BUFFERS_MAX], ..segment() };
    assert!(SegmentDescriptor::decode(&many.encode()).is_ok());
    assert!(many.encode().len() < FRAME_BYTES_DEFAULT_MAX);
    many.buffers.push(buffer);
    assert_eq!(SegmentDescriptor::decode(&many.encode()), Err(SegmentError::Field("buffers")));
}

/// A descriptor of an older release lacks the version and means version one.
#[test]
fn older_descriptor_means_version_one() {
    let text = r#"{"buffers":[],"name":"10.0.0.7:1","protocol":"tcp","tcp_data_port":16344}"#;
    let old = SegmentDescriptor::decode(text).unwrap();
    assert!(old.offers_tcp());
    assert_eq!(old.tcp_version(), ProtocolVersion::One);
    assert_eq!(old.tcp_data_address("10.0.0.7"), "10.0.0.7:16344");
    assert_eq!(old.tcp_data_address("fe80::1"), "[fe80::1]:16344");
    let later = SegmentDescriptor { tcp_proto_version: Some(2), ..old.clone() };
    assert_eq!(later.tcp_version(), ProtocolVersion::Two);
    let rdma = SegmentDescriptor { tcp_data_port: 0, ..old };
    assert!(!rdma.offers_tcp(), "a node without a data port");
}

/// A node has one protocol, or a list of them.
#[test]
fn protocols_are_a_name_or_a_list() {
    for (protocol, tcp, rdma) in [
        (r#""tcp""#, true, false),
        (r#""rdma""#, false, true),
        (r#"["tcp"]"#, true, false),
        (r#"["rdma","tcp"]"#, true, true),
    ] {
        let text = format!(r#"{{"name":"a","protocol":{protocol},"tcp_data_port":1}}"#);
        let segment = SegmentDescriptor::decode(&text).unwrap();
        assert_eq!((segment.offers_tcp(), segment.offers_rdma()), (tcp, rdma), "{text}");
    }
}

#[test]
fn hostile_texts_are_errors_of_a_few_words() {
    let long = format!(r#"{{"name":"a","protocol":"tcp","buffers":"{}"}}"#, "x".repeat(4000));
    for text in ["", "[]", "7", r#"{"name":7}"#, r#"{"name":"a"}"#, &long] {
        let error = SegmentDescriptor::decode(text).unwrap_err().to_string();
        assert!(error.len() < 600, "{} bytes", error.len());
        assert!(RpcMeta::decode(text).is_err());
    }
    for text in ["", "[]", "7", r#"{"name":7}"#, r#"{"notify_msg":["#] {
        assert!(Notification::decode(text).is_err(), "{text}");
    }
    for text in [
        r#"{"ip_or_host_name":"","rpc_port":1}"#,
        r#"{"ip_or_host_name":"h","rpc_port":65536}"#,
        r#"{"ip_or_host_name":"h","rpc_port":-1}"#,
        r#"{"rpc_port":1}"#,
    ] {
        assert!(RpcMeta::decode(text).is_err(), "{text}");
    }
}

/// The host of a call address entry is as long as the name of a node at most.
#[test]
fn longer_hosts_than_names_are_refused() {
    let entry = |bytes: usize| RpcMeta { ip_or_host_name: "h".repeat(bytes), rpc_port: 1 };
    let longest = entry(NodeName::BYTES_MAX);
    assert_eq!(RpcMeta::decode(&longest.encode()), Ok(longest));
    let longer = entry(NodeName::BYTES_MAX + 1).encode();
    assert_eq!(RpcMeta::decode(&longer), Err(RpcMetaError::Host));
}

/// A notification at its limits is accepted; one byte more is refused.
#[test]
fn notification_past_its_limit_is_refused() {
    let whole = Notification {
        name: "n".repeat(NOTIFICATION_NAME_BYTES_MAX),
        message: "m".repeat(NOTIFICATION_MESSAGE_BYTES_MAX),
    };
    assert_eq!(Notification::decode(&whole.encode()), Ok(whole.clone()));
    let name = Notification { name: format!("{}n", whole.name), ..whole.clone() };
    let message = Notification { message: format!("{}m", whole.message), ..whole };
    for past in [name, message] {
        let refused = Notification::decode(&past.encode());
        assert!(matches!(refused, Err(NotificationError::TooLong { .. })), "{refused:?}");
    }
    assert!(!Notification::rejected().is_accepted());
}

/// Keys contain the cluster; a name with a slash has its own prefix.
#[test]
fn keys_contain_the_cluster() {
    let (plain, cluster) = (Keys::new("").unwrap(), Keys::new("east").unwrap());
    assert_eq!(plain.segment("a:1"), "mooncake/ram/a:1");
    assert_eq!(plain.segment("ssd/a:1"), "mooncake/ssd/a:1");
    assert_eq!(plain.rpc_meta("a:1"), "mooncake/rpc_meta/a:1");
    assert_eq!(cluster.segment("a:1"), "mooncake/east/ram/a:1");
    assert_eq!(Keys::new("east/"), Ok(cluster));
    let long = CLUSTER_ID_BYTES_MAX + 1;
    assert_eq!(Keys::new(&"x".repeat(long)), Err(KeysError::TooLong { bytes: long }));
    assert_eq!(Keys::new("a\n"), Err(KeysError::ForbiddenCharacter));
}

#[test]
fn addresses_are_told_apart_with_and_without_brackets() {
    for (address, host) in [("h:1", "h"), ("[fe80::1]:1", "fe80::1"), ("192.0.2.2:1", "192.0.2.2")]
    {
        let meta = RpcMeta::of_address(address).unwrap();
        assert_eq!((&*meta.ip_or_host_name, &*meta.address()), (host, address));
    }
    for wrong in ["", "h", ":1", "h:", "h:65536"] {
        assert_eq!(RpcMeta::of_address(wrong), None, "{wrong}");
    }
}

#[test]
fn a_peer_that_streams_at_once_is_told_from_one_that_refuses() {
    assert_eq!(DataStatus::decode(*b"MOONCAKE"), Err(DataStatusError::Magic(0x454b_4143)));
    let mut later = DataStatus::Done.encode();
    later[0] = 2;
    assert_eq!(DataStatus::decode(later), Err(DataStatusError::Code(2)));
}

proptest! {
    #[test]
    fn any_request_survives_its_own_wire(
        write: bool,
        acknowledged: bool,
        bytes: u64,
        address: u64,
        padding: [u8; 7],
    ) {
        let request = DataRequest {
            direction: if write { Direction::Write } else { Direction::Read },
            version: if acknowledged { ProtocolVersion::Two } else { ProtocolVersion::One },
            bytes,
            address,
        };
        let mut header = request.encode();
        prop_assert_eq!(&header[17..], &[0; 7]);
        header[17..].copy_from_slice(&padding);
        prop_assert_eq!(DataRequest::decode(header), request);
    }

    #[test]
    fn any_status_frame_is_one_of_two_or_an_error(frame: [u8; STATUS_BYTES]) {
        if let Ok(status) = DataStatus::decode(frame) {
            prop_assert_eq!(status.encode(), frame);
        }
    }

    #[test]
    fn any_notification_within_its_limits_survives_its_own_wire(name in ".{0,40}", message in ".{0,200}") {
        let said = Notification { name, message };
        prop_assert_eq!(Notification::decode(&said.encode()), Ok(said));
    }

    #[test]
    fn any_descriptor_within_its_limits_survives_its_own_wire(
        name in "[^\u{0}]{1,40}",
        buffers in prop::collection::vec((1u64..1 << 47, 1u64..1 << 40, "[a-z*:0-9]{1,20}"), 0..20),
        port: u16,
        version in prop::option::of(0u32..4),
        host in prop::option::of("[a-z.0-9]{0,20}"),
    ) {
        let buffer = |(addr, length, name)| BufferDescriptor {
            addr, length, lkey: vec![7], name, protocol: None, rkey: vec![9],
        };
        let whole = SegmentDescriptor {
            name,
            buffers: buffers.into_iter().map(buffer).collect(),
            devices: vec![device()],
            tcp_data_port: port,
            tcp_proto_version: version,
            tcp_data_host: host,
            ..segment()
        };
        prop_assert_eq!(SegmentDescriptor::decode(&whole.encode()), Ok(whole));
    }
}

fn device() -> DeviceDescriptor {
    DeviceDescriptor { gid: "00:00".into(), lid: 7, name: "rxe0".into() }
}

fn segment() -> SegmentDescriptor {
    SegmentDescriptor {
        buffers: vec![BufferDescriptor {
            addr: 0x7f00_0000_0000,
            length: 1 << 30,
            lkey: vec![1; DEVICES_PUBLISHED_MAX],
            name: "cpu:0".into(),
            protocol: Some("p".repeat(TEXT_BYTES_MAX)),
            rkey: vec![u32::MAX; DEVICES_PUBLISHED_MAX],
        }],
        devices: vec![device(); DEVICES_PUBLISHED_MAX],
        name: "n".repeat(TEXT_BYTES_MAX),
        priority_matrix: Some(
            [("cpu:0".into(), Nics { preferred: vec![], available: vec!["rxe0".into()] })]
                .into_iter()
                .collect(),
        ),
        protocol: Protocols::One("rdma".into()),
        rdma_server_name: Some(String::new()),
        tcp_data_host: None,
        tcp_data_port: 0,
        tcp_proto_version: Some(1),
        timestamp: Some("t".repeat(TIMESTAMP_BYTES_MAX)),
    }
}

/// The answer of a node without a descriptor differs from one with a descriptor.
#[test]
fn answer_without_a_descriptor_is_null() {
    assert!(is_null(NULL_ANSWER) && is_null("null"));
    assert!(!is_null("") && !is_null(&segment().encode()));
}
