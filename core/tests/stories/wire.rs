//! The control wire against bytes recorded from a released Mooncake node, and against junk.

use handfast_core::mooncake::{
    MATRIX_LOCATIONS_MAX, Nics, PriorityMatrix, SegmentDescriptor, TEXT_BYTES_MAX,
};
use handfast_core::wire::*;
use handfast_core::{Incarnation, Lifecycle, NicPath, NodeName, Pair};

const HANDSHAKE: [&[u8]; 4] = [
    include_bytes!("../golden/rdma-write64-02.c2s.bin"),
    include_bytes!("../golden/rdma-write64-02.s2c.bin"),
    include_bytes!("../golden/rdma-write64-03.c2s.bin"),
    include_bytes!("../golden/rdma-write64-03.s2c.bin"),
];

#[test]
fn recorded_handshakes_decode_and_encode_to_the_same_bytes() {
    for bytes in HANDSHAKE {
        let frame = decode_frame(bytes, FRAME_BYTES_DEFAULT_MAX).unwrap();
        assert_eq!(frame.kind, FrameKind::Connection);
        let descriptor: Descriptor = serde_json::from_str(frame.text).unwrap();
        let mut text = serde_json::to_string(&descriptor).unwrap();
        text.push('\n');
        assert_eq!(encode_frame(FrameKind::Connection, &text), bytes);
        assert_eq!(Message::decode(frame.text), Err(MessageError::NoKey));
    }
}

#[test]
fn recorded_handshakes_are_what_a_node_without_our_key_says() {
    let plain = HANDSHAKE.map(|bytes| {
        let frame = decode_frame(bytes, FRAME_BYTES_DEFAULT_MAX).unwrap();
        let plain = PlainMessage::decode(frame.text).unwrap();
        assert_eq!(encode_frame(FrameKind::Connection, &plain.encode()), bytes);
        plain
    });
    let [request, reply, ready, ack] = plain;
    assert_eq!((request.ready, reply.ready, ready.ready), (Some(false), Some(false), Some(true)));
    assert_eq!(request.body.queue_pairs, ready.body.queue_pairs);
    assert_eq!((reply.from, reply.to), (request.to, request.from));
    assert_eq!(ack, PlainMessage { ready: ack.ready, ..PlainMessage::ack() });
}

/// A node on InfiniBand sends the LID of its port.
#[test]
fn legacy_message_keeps_its_lid() {
    let body = Body { queue_pairs: vec![5], lid: 7, ..Body::default() };
    let message = PlainMessage { body, ready: Some(false), ..PlainMessage::default() };
    assert_eq!(PlainMessage::decode(&message.encode()), Ok(message));
}

#[test]
fn hostile_descriptors_without_our_key_are_refused() {
    let long = "x".repeat(65);
    let many = vec!["1"; QUEUE_PAIRS_MAX + 1].join(",");
    for text in [
        "null".into(),
        r#"{"qp_num":["1"]}"#.into(),
        format!(r#"{{"qp_num":[{many}]}}"#),
        format!(r#"{{"local_gid":"{long}"}}"#),
        r#"{"local_nic_path":"no separator"}"#.into(),
    ] {
        let text: String = text;
        assert!(PlainMessage::decode(&text).is_err(), "{text}");
    }
    let most = vec!["1"; QUEUE_PAIRS_MAX].join(",");
    for text in
        [format!(r#"{{"qp_num":[{most}]}}"#), format!(r#"{{"local_gid":"{}"}}"#, &long[1..])]
    {
        assert!(PlainMessage::decode(&text).is_ok(), "{text}");
    }
}

#[test]
fn recorded_notify_and_probe_frames_keep_their_type() {
    let recorded: [(&[u8], FrameKind); 4] = [
        (include_bytes!("../golden/rdma-notify-04.c2s.bin"), FrameKind::Notify),
        (include_bytes!("../golden/rdma-notify-04.s2c.bin"), FrameKind::Notify),
        (include_bytes!("../golden/rdma-probe-01.c2s.bin"), FrameKind::Probe),
        (include_bytes!("../golden/rdma-probe-01.s2c.bin"), FrameKind::Probe),
    ];
    for (bytes, kind) in recorded {
        let frame = decode_frame(bytes, FRAME_BYTES_DEFAULT_MAX).unwrap();
        assert_eq!(frame.kind, kind);
        assert_eq!(encode_frame(kind, frame.text), bytes);
    }
}

#[test]
fn every_message_survives_its_own_wire() {
    for op in [Op::Request, Op::Reply, Op::Ready, Op::Ack, Op::Quiesce, Op::Retired, Op::Refuse] {
        let sent = message(op);
        assert_eq!(Message::decode(&sent.encode()), Ok(sent));
    }
}

#[test]
fn a_frame_at_the_limit_passes_and_one_byte_more_is_refused() {
    let frame = encode_frame(FrameKind::Connection, "{}");
    assert!(decode_frame(&frame, 3).is_ok());
    assert_eq!(decode_frame(&frame, 2), Err(FrameError::TooLong { length: 3, limit: 2 }));
}

/// Lengths of zero and 2^63 are refused before any allocation.
#[test]
fn absurd_lengths_are_refused_before_allocation() {
    assert_eq!(frame_length([0; 8], FRAME_BYTES_MAX), Err(FrameError::Empty));
    let huge = (1u64 << 63).to_le_bytes();
    assert!(matches!(frame_length(huge, usize::MAX), Err(FrameError::TooLong { .. })));
}

#[test]
fn http_and_tls_bytes_are_refused_by_their_length_field() {
    for junk in [b"GET / HTTP/1.1\r\n\r\n".as_slice(), b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03"]
    {
        assert!(matches!(
            decode_frame(junk, FRAME_BYTES_DEFAULT_MAX),
            Err(FrameError::TooLong { .. })
        ));
    }
}

/// Every refusal reason survives the wire, and a request may echo.
#[test]
fn refusal_reasons_survive_the_wire() {
    for reason in [
        RefusalReason::Gone,
        RefusalReason::Superseded,
        RefusalReason::Busy,
        RefusalReason::Starting,
        RefusalReason::Configuration,
        RefusalReason::Encryption,
        RefusalReason::Protection,
        RefusalReason::NameConflict,
        RefusalReason::Unproven,
    ] {
        let mut refuse = message(Op::Refuse);
        refuse.refusal = Some(Refusal { reason, detail: "no".into() });
        assert_eq!(Message::decode(&refuse.encode()), Ok(refuse));
    }
    let mut request = message(Op::Request);
    request.echo = message(Op::Reply).echo;
    assert!(request.echo.is_some());
    assert_eq!(Message::decode(&request.encode()), Ok(request));
}

#[test]
fn every_truncation_of_a_message_is_an_error_and_never_a_panic() {
    let whole = encode_frame(FrameKind::Connection, &message(Op::Reply).encode());
    for length in 0..whole.len() {
        assert!(decode_frame(&whole[..length], FRAME_BYTES_DEFAULT_MAX).is_err());
    }
}

/// A reply without an echo and a refusal without a reason are refused.
#[test]
fn reply_without_echo_is_refused() {
    let mut reply = message(Op::Reply);
    reply.echo = None;
    assert_eq!(Message::decode(&reply.encode()), Err(MessageError::Field("echo")));
    let mut refuse = message(Op::Refuse);
    refuse.refusal = None;
    assert_eq!(Message::decode(&refuse.encode()), Err(MessageError::Field("refusal")));
}

#[test]
fn more_queue_pairs_than_the_limit_are_refused() {
    let mut request = message(Op::Request);
    request.body.queue_pairs = vec![1; QUEUE_PAIRS_MAX];
    assert!(Message::decode(&request.encode()).is_ok());
    request.body.queue_pairs.push(1);
    assert_eq!(Message::decode(&request.encode()), Err(MessageError::Field("qp_num")));
    request.body.queue_pairs.pop();
    request.body.psns = vec![1; QUEUE_PAIRS_MAX];
    assert!(Message::decode(&request.encode()).is_ok());
    request.body.psns.push(1);
    assert_eq!(Message::decode(&request.encode()), Err(MessageError::Field("qp_num")));
}

/// A text of a message may be as long as its limit, and no longer.
#[test]
fn longer_texts_than_their_limits_are_refused() {
    let decoded = |bytes| {
        let mut request = message(Op::Request);
        request.body.address = "x".repeat(bytes);
        Message::decode(&request.encode())
    };
    assert!(decoded(NodeName::BYTES_MAX).is_ok());
    assert_eq!(decoded(NodeName::BYTES_MAX + 1), Err(MessageError::Field("address")));
}

/// A legacy node reads a ready as one, and no other message.
#[test]
fn legacy_node_reads_the_ready() {
    for op in [Op::Request, Op::Reply, Op::Ready] {
        let plain = PlainMessage::decode(&message(op).encode()).unwrap();
        assert_eq!(plain.ready, Some(op == Op::Ready));
    }
}

/// A frame of a later type is refused, and one without a type is text.
#[test]
fn frame_of_an_unknown_type_is_refused() {
    let decoded = |first: u8| {
        let bytes = [&[1, 0, 0, 0, 0, 0, 0, 0][..], &[first]].concat();
        decode_frame(&bytes, FRAME_BYTES_DEFAULT_MAX).map(|frame| frame.kind)
    };
    for unknown in [4, 0x1f, 0x80, 0xff] {
        assert_eq!(decoded(unknown), Err(FrameError::UnknownType(unknown)));
    }
    assert_eq!(decoded(b'{'), Ok(FrameKind::Untyped));
}

/// A peer without a key reads that it needs one, and a Mooncake node finds no transport.
#[test]
fn locked_descriptor_requires_a_key() {
    let text = NodeDescriptor::locked("prove a key");
    assert_eq!(NodeDescriptor::decode(&text), Err(DescriptorError::Required(REQUIRED_AUTH)));
    let theirs = SegmentDescriptor::decode(&text).unwrap();
    assert_eq!(theirs.name, "prove a key");
    assert!(!theirs.offers_tcp() && !theirs.offers_rdma());
}

/// A Mooncake node reads the devices of a node without a data port as near to all memory.
#[test]
fn devices_are_near_for_a_mooncake_node() {
    let read = |node: NodeDescriptor| SegmentDescriptor::decode(&node.encode()).unwrap();
    let theirs = read(descriptor());
    assert!(theirs.offers_rdma());
    let matrix = theirs.priority_matrix.expect("there is a device");
    assert_eq!(matrix.nics("cpu:0").preferred, ["rxe0"]);
    let port = DataPort { host: "x".repeat(NodeName::BYTES_MAX), port: 15_001 };
    let whole = NodeDescriptor { data_port: Some(port.clone()), ..descriptor() };
    assert_eq!(NodeDescriptor::decode(&whole.encode()), Ok(whole.clone()));
    assert!(!read(whole.clone()).offers_rdma());
    let port = DataPort { host: format!("{}x", port.host), ..port };
    let past = NodeDescriptor { data_port: Some(port), ..whole };
    let refused = Err(DescriptorError::Field("tcp_data_host"));
    assert_eq!(NodeDescriptor::decode(&past.encode()), refused);
}

/// The key of a checksum is sixteen hexadecimal digits.
#[test]
fn key_of_a_checksum_is_sixteen_digits() {
    let text = descriptor().encode();
    let key = r#""key":"0000000000000001""#;
    assert!(text.contains(key));
    for wrong in ["1", "+000000000000001", "00000000000000001"] {
        let text = text.replace(key, &format!(r#""key":"{wrong}""#));
        let refused = Err(DescriptorError::Field("checksum.key"));
        assert_eq!(NodeDescriptor::decode(&text), refused, "{wrong}");
    }
}

/// A segment descriptor survives the wire; a hostile one is refused.
#[test]
fn segment_descriptor_survives_the_wire() {
    let whole = descriptor();
    assert_eq!(NodeDescriptor::decode(&whole.encode()), Ok(whole.clone()));

    let mut long = whole.clone();
    long.regions[0].name = "x".repeat(REGION_NAME_BYTES_MAX + 1);
    assert_eq!(NodeDescriptor::decode(&long.encode()), Err(DescriptorError::Field("buffers.name")));
    let mut wrapping = whole.clone();
    wrapping.regions[0].address = u64::MAX;
    let refused = Err(DescriptorError::Field("buffers.length"));
    assert_eq!(NodeDescriptor::decode(&wrapping.encode()), refused);
    let mut many = whole;
    many.regions = vec![many.regions[0].clone(); REGIONS_PUBLISHED_DEFAULT_MAX];
    assert!(many.encode().len() < FRAME_BYTES_DEFAULT_MAX, "the default fits into a frame");
    many.regions = vec![many.regions[0].clone(); REGIONS_PUBLISHED_MAX];
    assert!(many.encode().len() < DESCRIPTOR_BYTES_MAX, "the limit fits into the longest one");
    assert!(NodeDescriptor::decode(&many.encode()).is_ok());
    many.regions.push(many.regions[0].clone());
    assert_eq!(NodeDescriptor::decode(&many.encode()), Err(DescriptorError::Field("regions")));
}

/// A region of several pieces has a key for each and device, which readers without pieces do not see.
#[test]
fn region_in_pieces_survives_the_wire() {
    let whole = descriptor();
    let mut cut = whole.clone();
    cut.regions[0].cut = Cut::new(1 << 30, 600 << 20, 16 << 20);
    cut.regions[0].remote_keys = vec![1, 2];
    let text = cut.encode();
    assert_eq!(NodeDescriptor::decode(&text), Ok(cut));
    let pieces = r#""pieces":{"bytes":629145600,"rkey":[1,2],"step":612368384},"#;
    assert!(text.contains(pieces), "{text}");
    let unaware = NodeDescriptor::decode(&text.replace(pieces, "")).unwrap();
    assert!(unaware.regions[0].remote_keys.is_empty(), "it has no key that it could misuse");
    for (from, to) in [
        ("[1,2]", "[1]"),
        ("[1,2]", "[1,2,3]"),
        ("\"step\":612368384", "\"step\":0"),
        ("\"step\":612368384", "\"step\":629145601"),
        ("\"step\":612368384", "\"step\":1"),
    ] {
        let refused = Err(DescriptorError::Field("regions.pieces"));
        assert_eq!(NodeDescriptor::decode(&text.replace(from, to)), refused, "{to}");
    }
    let both = whole.encode().replace(r#""readable""#, &format!("{pieces}\"readable\""));
    assert_eq!(NodeDescriptor::decode(&both), Err(DescriptorError::Field("buffers.rkey")));
}

/// A descriptor without transports comes from a node with TCP alone.
#[test]
fn descriptor_without_transports_means_tcp() {
    let plain = NodeDescriptor {
        transports: Transports::default(),
        devices: vec![],
        regions: vec![RegionDescriptor { remote_keys: vec![], ..descriptor().regions[0].clone() }],
        ..descriptor()
    };
    let text = plain.encode();
    for absent in ["transports", "devices", "rkey", "lkey"] {
        assert!(!text.contains(absent), "{absent} in {text}");
    }
    assert_eq!(NodeDescriptor::decode(&text), Ok(plain));
}

/// A node announces that it takes further calls, or omits the flag.
#[test]
fn further_calls_flag_is_optional() {
    let plain = descriptor();
    assert!(!plain.encode().contains("keep"));
    let keeping = NodeDescriptor { keep: true, ..descriptor() };
    let text = keeping.encode();
    assert_eq!(NodeDescriptor::decode(&text), Ok(keeping));
    let wrong = text.replace(r#""keep":true"#, r#""keep":1"#);
    assert!(matches!(NodeDescriptor::decode(&wrong), Err(DescriptorError::Malformed(_))));
    // Mooncake nodes ignore the handfast key.
    assert_eq!(SegmentDescriptor::decode(&text), SegmentDescriptor::decode(&plain.encode()));
}

/// Transports of a later version are ignored, and devices have limits.
#[test]
fn unknown_transports_are_ignored() {
    let known =
        NodeDescriptor { transports: Transports { tcp: false, rdma: true }, ..descriptor() };
    let later = known.encode().replace(r#"["rdma"]"#, r#"["pigeon","rdma"]"#);
    assert_eq!(NodeDescriptor::decode(&later), Ok(known.clone()));
    let none = NodeDescriptor { transports: Transports { tcp: false, rdma: false }, ..known };
    let later = none.encode().replace(r#""transports":[]"#, r#""transports":["pigeon"]"#);
    assert_eq!(NodeDescriptor::decode(&later), Ok(none));

    let mut many = descriptor();
    many.devices = vec![many.devices[0].clone(); DEVICES_PUBLISHED_MAX];
    many.devices[0].name = "x".repeat(DEVICE_NAME_BYTES_MAX);
    many.regions[0].remote_keys = vec![1; DEVICES_PUBLISHED_MAX];
    assert!(NodeDescriptor::decode(&many.encode()).is_ok());
    for change in [
        |many: &mut NodeDescriptor| many.devices[0].name.push('x'),
        |many: &mut NodeDescriptor| many.devices[1].name.clear(),
        |many: &mut NodeDescriptor| many.devices[1].gid = "0".repeat(65),
        |many: &mut NodeDescriptor| {
            many.devices.push(many.devices[1].clone());
            many.regions[0].remote_keys.push(1);
        },
    ] {
        let mut wrong = many.clone();
        change(&mut wrong);
        let refused = Err(DescriptorError::Field("devices"));
        assert_eq!(NodeDescriptor::decode(&wrong.encode()), refused);
    }
    many.regions[0].remote_keys.pop();
    let refused = Err(DescriptorError::Field("buffers.rkey"));
    assert_eq!(NodeDescriptor::decode(&many.encode()), refused);
}

/// Memory locations and the device matrix survive the wire up to their limits.
#[test]
fn locations_and_matrix_survive_up_to_limits() {
    let matrix = |location: String| {
        let nics = Nics { preferred: vec!["rxe0".into()], available: vec![] };
        Some([(location, nics)].into_iter().collect::<PriorityMatrix>())
    };
    let mut most = descriptor();
    most.matrix = matrix("x".repeat(TEXT_BYTES_MAX));
    most.regions[0].location = Some("x".repeat(REGION_LOCATION_BYTES_MAX));
    most.regions[0].needs_flush = true;
    assert_eq!(NodeDescriptor::decode(&most.encode()), Ok(most.clone()));
    let refused = |field, descriptor: NodeDescriptor| {
        let refused = Err(DescriptorError::Field(field));
        assert_eq!(NodeDescriptor::decode(&descriptor.encode()), refused);
    };
    refused("matrix", NodeDescriptor { matrix: matrix("x".repeat(513)), ..most.clone() });
    let mut past = most.clone();
    past.regions[0].location.as_mut().unwrap().push('x');
    refused("regions.location", past);
    let many = (0..=MATRIX_LOCATIONS_MAX).map(|n| (format!("cpu:{n}"), Nics::default()));
    refused("matrix", NodeDescriptor { matrix: Some(many.collect()), ..most.clone() });
    let shape = most.encode().replace(r#"[["rxe0"],[]]"#, "7");
    let told = NodeDescriptor::decode(&shape).unwrap();
    assert_eq!(told, NodeDescriptor { matrix: None, ..most }, "one of another shape is none");
}

/// The descriptor of a node with a data port has every field of a recorded one.
#[test]
fn data_port_descriptor_matches_the_recording() {
    let port = DataPort { host: "10.0.0.1".into(), port: 15_001 };
    let whole = NodeDescriptor { data_port: Some(port), ..descriptor() };
    assert_eq!(NodeDescriptor::decode(&whole.encode()), Ok(whole.clone()));
    let theirs = include_bytes!("../golden/tcp-write64-01.s2c.bin");
    let frame = decode_frame(theirs, FRAME_BYTES_DEFAULT_MAX).unwrap();
    let theirs = SegmentDescriptor::decode(frame.text).unwrap();
    let ours = SegmentDescriptor::decode(&whole.encode()).unwrap();
    assert!(ours.offers_tcp());
    assert_eq!(
        (&ours.protocol, &ours.rdma_server_name),
        (&theirs.protocol, &theirs.rdma_server_name)
    );
    assert_eq!(ours.tcp_version(), theirs.tcp_version());
    assert_eq!(ours.tcp_data_address("elsewhere"), "10.0.0.1:15001");
    let mut past = whole.encode();
    past = past.replace(r#""tcp_data_port":15001"#, r#""tcp_data_port":65536"#);
    let refused = Err(DescriptorError::Field("tcp_data_port"));
    assert_eq!(NodeDescriptor::decode(&past), refused);
}

#[test]
fn a_mooncake_segment_descriptor_is_told_from_ours() {
    let text = r#"{"buffers":[{"addr":4096,"length":64,"name":"cpu:0"}],"name":"10.0.0.7:1","protocol":"tcp","tcp_data_port":16344}"#;
    let refused = Err(DescriptorError::NoKey("10.0.0.7:1".into()));
    assert_eq!(NodeDescriptor::decode(text), refused);
}

fn descriptor() -> NodeDescriptor {
    NodeDescriptor {
        name: NodeName::new("10.0.0.1:7000").unwrap(),
        incarnation: Incarnation(9),
        address: "10.0.0.1:7000".into(),
        transports: Transports { tcp: true, rdma: true },
        devices: vec![DeviceDescriptor {
            gid: "00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:01".into(),
            lid: 0,
            name: "rxe0".into(),
        }],
        matrix: None,
        regions: vec![RegionDescriptor {
            name: "m".repeat(REGION_NAME_BYTES_MAX),
            key: 0xfeed,
            remote_keys: vec![u32::MAX],
            cut: None,
            address: 0x7f00_0000_0000,
            bytes: 1 << 30,
            readable: true,
            writable: false,
            location: None,
            needs_flush: false,
        }],
        checksum: Some(Checksum { key: 1, address: 2, bytes: 3, answer: Some(Ok(4)) }),
        data_port: None,
        keep: false,
    }
}

#[test]
fn an_error_quotes_no_more_of_a_long_word_than_its_limit() {
    for bytes in [0, 300, 4000] {
        let long = format!("\"{}\"", "x".repeat(bytes));
        let text = message(Op::Ready).encode().replace("\"ready\"", &long);
        let Err(MessageError::Malformed(detail)) = Message::decode(&text) else {
            panic!("an unknown op was accepted")
        };
        assert!(detail.starts_with("unknown variant"));
        assert_eq!(detail.len() == 512, bytes == 4000, "{} bytes", detail.len());
    }
}

fn message(op: Op) -> Message {
    let pair = |bits, number| Pair { incarnation: Incarnation(bits), lifecycle: Lifecycle(number) };
    Message {
        op,
        from: NicPath::parse("10.0.0.1:7000@rxe0").unwrap(),
        to: NicPath::parse("[fe80::1]:7001@rxe1").unwrap(),
        sender: pair(u128::MAX, 3),
        echo: Some(pair(7, u64::MAX)),
        body: Body {
            queue_pairs: vec![17, 18],
            psns: vec![1, 0xff_ffff],
            token: "00112233aabbccdd".into(),
            address: "10.0.0.1:7000".into(),
            probe: Some(ProbeByte { address: u64::MAX, key: u32::MAX }),
            ..Body::default()
        },
        refusal: (op == Op::Refuse)
            .then(|| Refusal { reason: RefusalReason::Gone, detail: "lifecycle 4 ended".into() }),
    }
}
