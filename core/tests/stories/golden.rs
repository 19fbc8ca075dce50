//! Every recorded byte of released Mooncake nodes: it decodes, encodes to the same again, and is
//! answered by us as it was answered by them. `core/tests/golden/README.md` says what was recorded.

use handfast_core::mooncake::*;
use handfast_core::node::{CallToken, Limits, NodeConfig, Timing};
use handfast_core::transfer::Direction;
use handfast_core::transport::{Operation, Outcome};
use handfast_core::wire::*;
use handfast_core::{Incarnation, Input, Instant, NicPath, Node, Output};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// One recorded connection.
struct Connection {
    name: String,
    asked: Vec<u8>,
    answered: Vec<u8>,
}

/// Every recorded connection has a known kind and re-encodes to its own bytes.
#[test]
fn recorded_connections_survive_a_round_trip() {
    let mut kinds = BTreeMap::new();
    for connection in recorded() {
        let kind = match &*connection.name {
            "http-metadata-write64-01" | "http-metadata-write64-02" => {
                check_store(&connection);
                "store"
            }
            name if is_data(name) => {
                check_data(&connection);
                "data"
            }
            _ => check_control(&connection),
        };
        *kinds.entry(kind).or_insert(0) += 1;
    }
    let counted: Vec<_> = kinds.into_iter().collect();
    let expected = [
        ("data", 13),
        ("handshake", 6),
        ("metadata", 13),
        ("notify", 2),
        ("probe", 2),
        ("store", 2),
    ];
    assert_eq!(counted, expected);
}

/// The answer to a recorded handshake equals a released node's, byte for byte.
#[test]
fn recorded_handshake_gets_the_released_answer() {
    for name in ["rdma-write64", "rdma-write-then-reverse", "rdma-notify"] {
        let [request, ready] = ["02", "03"].map(|number| find(&format!("{name}-{number}")));
        let reply = plain(&request.answered);
        let path = reply.from.clone().expect("a reply names its sender");
        let mut node = Answering::new(path, reply.body);
        assert_eq!(node.answer(&request.asked), request.answered, "{name}: the reply");
        assert_eq!(node.answer(&ready.asked), ready.answered, "{name}: the acknowledgement");
    }
}

/// A requester of an older release gets the same reply.
#[test]
fn older_requester_gets_the_same_reply() {
    let recorded = find("rdma-write64-02");
    let reply = plain(&recorded.answered);
    let path = reply.from.clone().expect("a reply names its sender");
    // Fields missing in older releases: the ready phase before 0.3.12, the GID before 0.3.11, and
    // the type byte in the oldest release.
    let text = text_of(&recorded.asked).to_owned();
    let no_ready = text.replace(r#""ready_ack":false,"#, "");
    let gid = plain(&recorded.asked).body.gid;
    let no_gid = no_ready.replace(&format!(r#""local_gid":"{gid}","local_lid":0,"#), "");
    assert!(!no_gid.contains("ready_ack") && !no_gid.contains("local_gid"));
    for (kind, text) in [
        (FrameKind::Connection, &no_ready),
        (FrameKind::Connection, &no_gid),
        (FrameKind::Untyped, &no_gid),
    ] {
        let mut node = Answering::new(path.clone(), reply.body.clone());
        let answered = node.answer(&encode_frame(kind, text));
        let frame = decode_frame(&answered, FRAME_BYTES_DEFAULT_MAX).unwrap();
        assert_eq!((frame.kind, PlainMessage::decode(frame.text)), (kind, Ok(reply.clone())));
    }
}

/// Notifications and probes are answered with the recorded bytes.
#[test]
fn notifications_and_probes_get_recorded_bytes() {
    for name in ["tcp-notify-03", "rdma-notify-04"] {
        let recorded = find(name);
        let said = Notification::decode(text_of(&recorded.asked)).unwrap();
        assert_eq!((&*said.name, &*said.message), ("golden-name", "golden-message"));
        let answer = Notification::accepted();
        assert_eq!(encode_frame(FrameKind::Notify, &answer.encode()), recorded.answered);
        assert!(Notification::decode(text_of(&recorded.answered)).unwrap().is_accepted());
    }
    for name in ["tcp-probe-01", "rdma-probe-01"] {
        let recorded = find(name);
        assert_eq!(encode_frame(FrameKind::Probe, PROBE_QUESTION), recorded.asked);
        assert_eq!(encode_frame(FrameKind::Probe, PROBE_ANSWER), recorded.answered);
    }
}

/// Recorded etcd entries have the keys that handfast uses, and encode to the same values.
#[test]
fn recorded_etcd_entries_encode_to_the_same_values() {
    let text = include_str!("../golden/etcd-keys.json");
    let entries: Vec<BTreeMap<String, String>> = serde_json::from_str(text).unwrap();
    let entries: BTreeMap<_, _> =
        entries.into_iter().map(|entry| (entry["key"].clone(), entry["value"].clone())).collect();
    let keys = Keys::new("").unwrap();
    let mut seen = 0;
    for node in ["golden-init:12002", "golden-target:12001"] {
        let segment = &entries[&keys.segment(node)];
        let descriptor = SegmentDescriptor::decode(segment).unwrap();
        assert_eq!((&*descriptor.name, &descriptor.encode()), (node, segment));
        let meta = &entries[&keys.rpc_meta(node)];
        assert_eq!(RpcMeta::decode(meta).unwrap().encode(), *meta);
        seen += 2;
    }
    assert_eq!(seen, entries.len());
}

fn check_control(connection: &Connection) -> &'static str {
    let kinds = [&connection.asked, &connection.answered].map(|bytes| {
        let frame = decode_frame(bytes, FRAME_BYTES_DEFAULT_MAX).unwrap();
        let again = match frame.kind {
            FrameKind::Connection => PlainMessage::decode(frame.text).unwrap().encode(),
            FrameKind::Metadata => SegmentDescriptor::decode(frame.text).unwrap().encode(),
            FrameKind::Notify => Notification::decode(frame.text).unwrap().encode(),
            FrameKind::Probe => frame.text.to_owned(),
            FrameKind::Untyped => panic!("{}: a frame without its type", connection.name),
        };
        assert_eq!(&encode_frame(frame.kind, &again), bytes, "{}", connection.name);
        frame.kind
    });
    assert_eq!(kinds[0], kinds[1], "an answer has the type of its question");
    match kinds[0] {
        FrameKind::Connection => "handshake",
        FrameKind::Metadata => "metadata",
        FrameKind::Notify => "notify",
        _ => "probe",
    }
}

/// Walks the requests of a data connection together with their answers.
fn check_data(connection: &Connection) {
    let name = &connection.name;
    let (mut asked, mut answered) = (&*connection.asked, &*connection.answered);
    let mut refused = false;
    while let Some((header, rest)) = asked.split_first_chunk::<REQUEST_BYTES>() {
        assert!(!refused, "{name}: a request after a refusal");
        asked = rest;
        let request = DataRequest::decode(*header);
        assert_eq!(request.encode()[..17], header[..17], "{name}: all but the padding");
        let length = usize::try_from(request.bytes).unwrap();
        if request.direction == Direction::Write {
            asked = &asked[length..];
        }
        if request.version == ProtocolVersion::Two {
            let (frame, rest) = answered.split_first_chunk::<STATUS_BYTES>().unwrap();
            answered = rest;
            let status = DataStatus::decode(*frame).unwrap();
            assert_eq!(status.encode(), *frame, "{name}");
            refused = status == DataStatus::Refused;
        }
        if request.direction == Direction::Read && !refused {
            answered = &answered[length..];
        }
    }
    assert!(asked.is_empty() && answered.is_empty(), "{name}: bytes are left over");
    assert_eq!(refused, name.contains("bad-address"), "{name}");
}

/// Looks at the bodies and keys of a node's traffic with an HTTP store.
fn check_store(connection: &Connection) {
    let said = str::from_utf8(&connection.asked).unwrap();
    let keys = Keys::new("").unwrap();
    let mut entries = 0;
    let node =
        if connection.name.ends_with("01") { "golden-target:12001" } else { "golden-init:12002" };
    for put in said.split("PUT /metadata?key=").skip(1) {
        let (key, rest) = put.split_once(' ').unwrap();
        let key = key.replace("%2F", "/").replace("%3A", ":");
        let body = rest.split_once("\r\n\r\n").unwrap().1;
        let ends = ["GET /", "DELETE /"].iter().filter_map(|verb| body.find(verb)).min();
        let body = &body[..ends.unwrap_or(body.len())];
        let again = if key == keys.rpc_meta(node) {
            RpcMeta::decode(body).unwrap().encode()
        } else {
            assert_eq!(key, keys.segment(node));
            SegmentDescriptor::decode(body).unwrap().encode()
        };
        assert_eq!(again.trim_end(), body);
        entries += 1;
    }
    assert_eq!(entries, 4, "the address, then no memory, some, and none again");
}

/// A node that answers calls without our key, its backend willing.
struct Answering {
    node: Node,
    body: Body,
}

impl Answering {
    fn new(path: NicPath, body: Body) -> Self {
        let (limits, timing) = (Limits::default(), Timing::default());
        let config = NodeConfig { path, incarnation: Incarnation(1), seed: 7, limits, timing };
        Self { node: Node::new(config), body }
    }

    fn answer(&mut self, asked: &[u8]) -> Vec<u8> {
        let frame = decode_frame(asked, FRAME_BYTES_DEFAULT_MAX).unwrap();
        let message = PlainMessage::decode(frame.text).unwrap();
        let token = CallToken(7);
        let mut inputs = vec![Input::PlainCallReceived { token, message }];
        let mut answer = None;
        while let Some(input) = inputs.pop() {
            self.node.handle_input(Instant(0), input);
            while let Some(output) = self.node.poll_output() {
                match output {
                    Output::PlainAnswer { message, .. } => answer = Some(message),
                    Output::Operate(operation) => inputs.extend(self.outcome(&operation)),
                    _ => {}
                }
            }
        }
        encode_frame(frame.kind, &answer.expect("an answer").encode())
    }

    fn outcome(&self, operation: &Operation) -> Option<Input> {
        let outcome = match operation {
            Operation::Create { .. } => Outcome::Created(self.body.clone()),
            Operation::Connect { .. } => Outcome::Connected,
            _ => return None,
        };
        Some(Input::OperationDone { id: operation.id(), outcome })
    }
}

fn plain(bytes: &[u8]) -> PlainMessage {
    PlainMessage::decode(text_of(bytes)).unwrap()
}

fn text_of(bytes: &[u8]) -> &str {
    decode_frame(bytes, FRAME_BYTES_DEFAULT_MAX).unwrap().text
}

/// Over TCP all connections but the first and those of notifications and probes carry data.
fn is_data(name: &str) -> bool {
    let tcp = name.starts_with("tcp-") && !name.ends_with("-01") && name != "tcp-notify-03";
    tcp || name == "http-metadata-write64-03"
}

fn find(name: &str) -> Connection {
    let found = recorded().into_iter().find(|connection| connection.name == name);
    found.unwrap_or_else(|| panic!("{name} was not recorded"))
}

fn recorded() -> Vec<Connection> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let names = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name());
    let names =
        names.filter_map(|name| name.to_str().unwrap().strip_suffix(".c2s.bin").map(str::to_owned));
    let read = |name: &str, way: &str| fs::read(folder.join(format!("{name}.{way}.bin"))).unwrap();
    let connection = |name: String| {
        let (asked, answered) = (read(&name, "c2s"), read(&name, "s2c"));
        Connection { name, asked, answered }
    };
    names.map(connection).collect()
}
