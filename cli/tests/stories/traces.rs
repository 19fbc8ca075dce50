//! Recorded runs: of a server that is killed under load, of its next run, and of the client of both.

use crate::helpers::{Client, Folder, MIB, Server, TRIES_MAX, contains, run, succeed};
use serde_json::Value;
use std::fs;

fn replayed(file: &str) -> Value {
    let told = succeed(&["sim", "replay", file, "--allow-cut", "--json"]);
    serde_json::from_str(&told).unwrap()
}

/// Both sides of a SIGKILL and restart under load, recorded.
struct Restarted {
    folder: Folder,
    address: String,
}

impl Restarted {
    fn record() -> Self {
        (0..TRIES_MAX).find_map(|_| Self::try_record()).expect("a put is interrupted")
    }

    /// `None` if the put ends before the kill.
    fn try_record() -> Option<Self> {
        let folder = Folder::new();
        let file = folder.sparse("file", 256 * MIB);
        let (killed, next) = (folder.name("killed"), folder.name("next"));
        let server = Server::start(&recording(&killed));
        let (place, address) = (server.at("m"), server.address.clone());
        let record = folder.name("client");
        let how = ["--retries", "20", "--transport", "tcp", "--record", &record];
        let put = [&["put", &file, &place], &how[..]].concat();
        let mut client = Client::start(&put);
        server.until_grown(16 * MIB, &mut client);
        let server = server.restart(&recording(&next));
        let ended = client.end().done();
        drop(server);
        ended.errors.contains("attempt 1 failed").then_some(Self { folder, address })
    }
}

fn recording(trace: &str) -> [&str; 6] {
    ["--memory", "m=256M", "--name", "store", "--record", trace]
}

#[test]
fn restart_under_load_is_recorded_and_replays() {
    let Restarted { folder, address } = Restarted::record();
    for name in ["killed", "next", "client"] {
        let shown = replayed(&folder.name(name));
        assert!(shown["inputs"].as_u64() >= Some(4), "{name}: {shown}");
        assert_eq!(shown["ended"], name == "client", "{name}: {shown}");
        assert_eq!(shown["missing"], 0, "{name}: {shown}");
    }
    let client = folder.name("client");
    let told = succeed(&["sim", "replay", &client]);
    assert!(told.contains("every one as recorded"), "{told}");
    let draw =
        |how: &[&str]| succeed(&[&["sim", "timeline", &client, "--entries", "2000"], how].concat());
    let text = draw(&[]);
    contains(&text, &["Established", "ends: Peer", "Retiring", "lane A#1 is up", "fault"]);
    let mermaid = draw(&["--mermaid"]);
    assert!(mermaid.starts_with("sequenceDiagram\n    participant A as A (client-"), "{mermaid}");
    assert!(mermaid.contains("participant B as B (store@tcp)"), "{mermaid}");
    assert!(mermaid.contains("A->>B: ") && mermaid.contains("B->>A: "), "{mermaid}");
    let shown: Value = serde_json::from_str(&draw(&["--json"])).unwrap();
    assert!(shown["events"].as_array().is_some_and(|events| events.len() > 20), "{shown}");

    let redacted = folder.name("redacted");
    assert!(fs::read_to_string(&client).unwrap().contains(&address));
    let told = succeed(&["sim", "redact", &client, &redacted]);
    assert!(told.contains("2 names, 1 addresses") || told.contains("3 names"), "{told}");
    let text = fs::read_to_string(&redacted).unwrap();
    for secret in [&*address, "store", "client-", "127.0.0.1"] {
        assert!(!text.contains(secret), "'{secret}' is left");
    }
    let (before, after) = (replayed(&client), replayed(&redacted));
    for figure in ["inputs", "outputs", "edges", "milliseconds"] {
        assert_eq!(before[figure], after[figure], "{figure}");
    }
}

#[test]
fn malformed_and_diverging_traces_have_exit_codes() {
    let folder = Folder::new();
    let (file, trace) = (folder.patterned("file", 10, 0), folder.name("trace"));
    let server = Server::start(&["--memory", "m=1M"]);
    succeed(&["put", &file, &server.address, "--record", &trace]);
    let whole = fs::read_to_string(&trace).unwrap();
    let replay = |text: &str| {
        fs::write(&trace, text).unwrap();
        run(&["sim", "replay", &trace])
    };
    replay("").failed(14, &["our side, reading the trace, line 1", "empty", "--record FILE"]);
    replay("hello").failed(14, &["does not begin with 'handfast-trace'"]);
    let newer = whole.replacen("handfast-trace 3 ", "handfast-trace 4 ", 1);
    replay(&newer).failed(14, &["version 4", "the version of handfast that recorded it"]);
    replay(&whole[..whole.len() - 3]).failed(14, &["the last line is incomplete", "--allow-cut"]);
    let (connected, probed) = (r#""outcome":"Connected""#, r#""outcome":"Probed""#);
    replay(&whole.replacen(connected, probed, 1)).failed(14, &["checksum is wrong"]);
    let changed: String = whole
        .split_inclusive('\n')
        .map(|line| match line.contains(connected) {
            true => {
                let json = line.rsplit_once(' ').unwrap().0.replace(connected, probed);
                handfast_trace::signed(&json)
            }
            false => line.to_owned(),
        })
        .collect();
    replay(&changed).failed(12, &["entry 4 at ", "1 outputs (Call)", "0 outputs (-)"]);
    run(&["sim", "timeline", &trace]).failed(12, &["entry 4 at "]);
    let out = folder.name("out");
    run(&["sim", "redact", &trace, &out]).failed(12, &["entry 4 at "]);
    assert!(!fs::exists(&out).unwrap(), "half of a redacted trace is left");
    run(&["sim", "replay", &folder.name("absent")]).failed(2, &["no replay line"]);
}

#[test]
fn recording_that_cannot_begin_ends_the_command() {
    let folder = Folder::new();
    let (file, notes) = (folder.patterned("file", 10, 0), folder.name("notes"));
    fs::write(&notes, "mine").unwrap();
    let server = Server::start(&["--memory", "m=1M"]);
    let put = |more: &[&str]| run(&[&["put", &file, &server.address, "--record"], more].concat());
    put(&[&notes]).failed(5, &["starting the recording", "is not a recording; name another file"]);
    assert_eq!(fs::read(&notes).unwrap(), b"mine");
    put(&[&folder.name("a/b")]).failed(5, &["starting the recording", "a/b"]);
    put(&[&folder.name("c"), "--record-bytes", "1K"]).failed(2, &["1048576 to 1073741824 bytes"]);
    assert_eq!(put(&[&folder.name("c"), "--record-bytes", "1M"]).code, Some(0));
    assert_eq!(put(&[&folder.name("c")]).code, Some(0));
    assert_eq!(folder.names(), ["c", "c.old", "file", "notes"]);
}
