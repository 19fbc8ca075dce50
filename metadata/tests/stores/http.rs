//! The HTTP server, and the store that speaks to it and to others.

use handfast_metadata::{
    HttpServer, HttpStore, KEY_BYTES_MAX, ServerLimits, Store, StoreCause, VALUE_BYTES_MAX,
};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::test]
async fn entry_stays_until_removed() {
    let (store, _server) = served(None, ServerLimits::default()).await;
    assert_eq!(store.get("a/b:1").await, Ok(None));
    for value in ["{}\n", "{\"name\":\"ü\"}\n"] {
        store.put("a/b:1", value).await.unwrap();
        assert_eq!(store.get("a/b:1").await, Ok(Some(value.trim_end().to_owned())));
    }
    assert_eq!(store.get("a/b").await, Ok(None), "keys are whole");
    store.remove("a/b:1").await.unwrap();
    store.remove("a/b:1").await.unwrap();
    assert_eq!(store.get("a/b:1").await, Ok(None));
}

#[tokio::test]
async fn recorded_requests_of_released_nodes_get_recorded_answers() {
    let golden = golden();
    for number in ["01", "02"] {
        let read = |way: &str| {
            fs::read(golden.join(format!("http-metadata-write64-{number}.{way}.bin"))).unwrap()
        };
        let server = server(None, ServerLimits::default()).await;
        if number == "02" {
            // The other node has registered before: its answer is in what was recorded.
            let recorded = String::from_utf8(read("s2c")).unwrap();
            let segment = &recorded[recorded.find("{\"buffers\"").unwrap()..];
            let segment = &segment[..segment.find("}HTTP").unwrap() + 1];
            let store = HttpStore::new(&server.1).unwrap();
            store.put("mooncake/ram/golden-target:12001", segment).await.unwrap();
        }
        let address = server.1.strip_prefix("http://").unwrap().strip_suffix("/metadata").unwrap();
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(&read("c2s")).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answered = Vec::new();
        stream.read_to_end(&mut answered).await.unwrap();
        assert_eq!(answers(&answered), answers(&read("s2c")), "connection {number}");
    }
}

/// Status and body of each answer.
fn answers(bytes: &[u8]) -> Vec<(String, String)> {
    let mut rest = std::str::from_utf8(bytes).unwrap();
    let mut all = Vec::new();
    while let Some((head, body)) = rest.split_once("\r\n\r\n") {
        let length = head.lines().find_map(|line| {
            line.to_lowercase().strip_prefix("content-length: ").map(|it| it.parse().unwrap())
        });
        let length: usize = length.expect("a length");
        let status = head.lines().next().unwrap().to_owned();
        all.push((status, body[..length].to_owned()));
        rest = &body[length..];
    }
    assert!(rest.is_empty() && !all.is_empty());
    all
}

#[tokio::test]
async fn table_in_a_file_outlives_its_server() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("table");
    let (store, first) = served(Some(&file), ServerLimits::default()).await;
    store.put("kept", "{\"a\":1}").await.unwrap();
    store.put("gone", "{}").await.unwrap();
    store.remove("gone").await.unwrap();
    stop(first).await;
    let (store, _second) = served(Some(&file), ServerLimits::default()).await;
    assert_eq!(store.get("kept").await, Ok(Some("{\"a\":1}".to_owned())));
    assert_eq!(store.get("gone").await, Ok(None));
}

#[tokio::test]
async fn limits_of_keys_values_and_entries_are_exact() {
    let limits = ServerLimits { entries_max: 2, ..ServerLimits::default() };
    let (store, server) = served(None, limits).await;
    let (key, value) = ("k".repeat(KEY_BYTES_MAX), "v".repeat(VALUE_BYTES_MAX));
    store.put(&key, &value).await.unwrap();
    assert_eq!(store.get(&key).await.unwrap().map(|it| it.len()), Some(VALUE_BYTES_MAX));
    let long = store.put(&format!("{key}k"), "").await.unwrap_err();
    assert!(matches!(long.cause, StoreCause::TooLong { what: "key", .. }), "{long}");
    let long = store.put("k", &format!("{value}v")).await.unwrap_err();
    assert!(matches!(long.cause, StoreCause::TooLong { what: "value", .. }), "{long}");
    store.put("second", "{}").await.unwrap();
    let third = store.put("third", "{}").await.unwrap_err();
    assert!(matches!(third.cause, StoreCause::Refused { status: 507, .. }), "{third}");
    store.put("second", "[]").await.unwrap();
    drop(server);
    let few = ServerLimits { bytes_max: 10, ..ServerLimits::default() };
    let (store, _server) = served(None, few).await;
    store.put("key", "1234567").await.unwrap();
    let full = store.put("key", "12345678").await.unwrap_err();
    assert!(matches!(full.cause, StoreCause::Refused { status: 507, .. }), "{full}");
    assert_eq!(store.get("key").await, Ok(Some("1234567".to_owned())), "it is as it was");
}

#[tokio::test]
async fn server_survives_hostile_requests() {
    let limits =
        ServerLimits { request_timeout: Duration::from_millis(200), ..ServerLimits::default() };
    let (store, server) = served(None, limits).await;
    let address = store.name().strip_prefix("http://").unwrap().strip_suffix("/metadata").unwrap();
    let big = format!(
        "PUT /metadata?key=k HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n",
        1u64 << 40
    );
    let header = format!("GET /metadata?key=k HTTP/1.1\r\nX: {}", "x".repeat(64 << 10));
    for (said, status) in [
        ("GET /metadata HTTP/1.1\r\nHost: h\r\n\r\n", Some("400")),
        ("GET /metadata?key= HTTP/1.1\r\nHost: h\r\n\r\n", Some("400")),
        ("GET /metadata?key=%ff HTTP/1.1\r\nHost: h\r\n\r\n", Some("400")),
        ("POST /metadata?key=k HTTP/1.1\r\nHost: h\r\n\r\n", Some("405")),
        ("GET /health HTTP/1.1\r\nHost: h\r\n\r\n", Some("200")),
        (&*big, Some("413")),
        ("PUT /metadata?key=k HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n123", Some("408")),
        ("GET /metadata?key=k HTTP/1.1\r\nHos", None),
        (&*header, None),
        ("\u{16}\u{3}\u{1}\u{2}", None),
    ] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // It may be closed before it took everything.
        let _ = stream.write_all(said.as_bytes()).await;
        let mut answer = vec![0; 12];
        let got = stream.read(&mut answer).await.unwrap_or(0);
        let seen = std::str::from_utf8(&answer[..got]).unwrap().split(' ').nth(1);
        match status {
            Some(status) => assert_eq!(seen, Some(status), "{}", &said[..said.len().min(80)]),
            None => assert!(!matches!(seen, Some("200")), "{}", &said[..said.len().min(80)]),
        }
    }
    store.put("k", "{}").await.unwrap();
    stop(server).await;
}

/// A connection past the limit displaces one without a request, and a slow one of a crowd from another host.
#[tokio::test]
async fn connection_past_the_limit_displaces_a_slow_one() {
    const CROWD: &str = "127.0.0.66:0";
    // Nothing ends by its time here.
    let limits =
        ServerLimits { connections_max: 1, request_timeout: 6 * PATIENCE, ..Default::default() };
    let (store, _server) = served(None, limits).await;
    let address = store.name().strip_prefix("http://").unwrap().strip_suffix("/metadata").unwrap();
    let ended = |mut stream: TcpStream| async move {
        timeout(PATIENCE, stream.read_to_end(&mut Vec::new())).await.is_ok()
    };
    let mute = TcpStream::connect(address).await.unwrap();
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(CROWD.parse().unwrap()).unwrap();
    let mut slow = socket.connect(address.parse().unwrap()).await.unwrap();
    assert!(ended(mute).await, "it had no request");
    let put = "PUT /metadata?key=k HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n\
               Content-Length: 9\r\n\r\n";
    slow.write_all(put.as_bytes()).await.unwrap();
    // The server asks for the value: the request is under way.
    slow.read_exact(&mut [0; 12]).await.unwrap();
    store.put("k", "{}").await.unwrap();
    assert!(ended(slow).await, "its host had every place");
}

/// A client that does not read its answers gives its place back in time.
#[tokio::test]
async fn unread_answers_end_their_connection() {
    let limits = ServerLimits {
        connections_max: 1,
        request_timeout: Duration::from_secs(2),
        ..Default::default()
    };
    let (store, _server) = served(None, limits).await;
    store.put("k", &"v".repeat(VALUE_BYTES_MAX)).await.unwrap();
    let address = store.name().strip_prefix("http://").unwrap().strip_suffix("/metadata").unwrap();
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    let mut deaf = socket.connect(address.parse().unwrap()).await.unwrap();
    // Longer answers than any buffers on the way.
    let requests = "GET /metadata?key=k HTTP/1.1\r\nHost: h\r\n\r\n".repeat(128);
    deaf.write_all(requests.as_bytes()).await.unwrap();
    // It has the place once it is answered.
    deaf.read_exact(&mut [0]).await.unwrap();
    let closed = async {
        while deaf.write_all(b"G").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, closed).await.expect("it is closed in time");
    store.put("k", "{}").await.unwrap();
}

#[tokio::test]
async fn restarted_node_replaces_its_stale_address() {
    // As Mooncake's own server does: 400 for a key that is there.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}/metadata", listener.local_addr().unwrap());
    let strict = tokio::spawn(async move {
        let (mut there, mut said) = (true, Vec::new());
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 4096];
            let got = stream.read(&mut request).await.unwrap();
            let verb =
                String::from_utf8_lossy(&request[..got]).split(' ').next().unwrap().to_owned();
            let status = match &*verb {
                "PUT" if there => "400 Bad Request",
                _ => "200 OK",
            };
            there = verb == "PUT";
            said.push(format!("{verb} {}", &status[..3]));
            let answer =
                format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.unwrap();
            if said.len() == 3 {
                return said;
            }
        }
    });
    let store = HttpStore::new(&base).unwrap();
    store.put("mooncake/rpc_meta/n", "{}").await.unwrap();
    assert_eq!(strict.await.unwrap(), ["PUT 400", "DELETE 200", "PUT 200"]);
}

#[tokio::test]
async fn unreachable_or_silent_server_is_named_in_time() {
    let gone = HttpStore::new("http://127.0.0.1:1/metadata").unwrap();
    let error = gone.get("k").await.unwrap_err();
    assert!(matches!(error.cause, StoreCause::Unreachable(_)), "{error}");
    assert!(error.to_string().contains("http://127.0.0.1:1/metadata"), "{error}");
    let mute = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", mute.local_addr().unwrap());
    let error = HttpStore::new(&base).unwrap().get("k").await.unwrap_err();
    assert_eq!(error.cause, StoreCause::Silent { timeout: Duration::from_millis(3_000) });
    for wrong in ["https://h:x/m", "h:1", "http://", "http://h/m?key=k", "http://h:x/"] {
        assert!(HttpStore::new(wrong).is_err(), "{wrong}");
    }
}

async fn served(file: Option<&Path>, limits: ServerLimits) -> (HttpStore, JoinHandle<()>) {
    let (task, base) = server(file, limits).await;
    (HttpStore::new(&base).unwrap(), task)
}

pub(crate) async fn server(file: Option<&Path>, limits: ServerLimits) -> (JoinHandle<()>, String) {
    let server = HttpServer::bind("127.0.0.1:0", file, limits).await.unwrap();
    let base = format!("http://{}/metadata", server.address());
    (tokio::spawn(server.run()), base)
}

async fn stop(server: JoinHandle<()>) {
    server.abort();
    // Aborted, which is what we wait for.
    let _ = server.await;
}

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/tests/golden")
}

#[cfg(not(feature = "tls"))]
#[test]
fn missing_feature_is_named() {
    for (text, feature) in [("https://h:1/metadata", "tls"), ("etcd://h:1", "etcd")] {
        let source: handfast_metadata::Source = text.parse().unwrap();
        let error = source.open(handfast_metadata::Credentials::default()).err().unwrap();
        assert_eq!(error.cause, StoreCause::NotBuilt { feature });
        assert!(error.to_string().contains(&format!("--features {feature}")), "{error}");
    }
}

/// A connection whose client is still reading an answer is within its request: it makes no room while another one
/// is quiet, and the client gets the whole answer.
#[tokio::test]
async fn answer_under_way_is_read_to_its_end() {
    let limits =
        ServerLimits { connections_max: 2, request_timeout: 6 * PATIENCE, ..Default::default() };
    let (store, _server) = served(None, limits).await;
    store.put("k", &"v".repeat(VALUE_BYTES_MAX)).await.unwrap();
    let address: SocketAddr = store
        .name()
        .strip_prefix("http://")
        .and_then(|it| it.strip_suffix("/metadata"))
        .unwrap()
        .parse()
        .unwrap();
    let from = |host: &'static str| async move {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(host.parse().unwrap()).unwrap();
        socket.connect(address).await.unwrap()
    };
    // The oldest connection, with more answers than any buffers on the way have room for.
    let mut reading = from("127.0.0.66:0").await;
    let get = "GET /metadata?key=k HTTP/1.1\r\nHost: h\r\n\r\n";
    let last = "GET /metadata?key=k HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    reading.write_all((get.repeat(127) + last).as_bytes()).await.unwrap();
    reading.read_exact(&mut [0]).await.unwrap();
    // It displaces the connection of `store`, which is quiet.
    let mut quiet = from("127.0.0.67:0").await;
    quiet.write_all(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n").await.unwrap();
    quiet.read_exact(&mut [0; 12]).await.unwrap();
    let mut newcomer = from("127.0.0.68:0").await;
    newcomer.write_all(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n").await.unwrap();
    newcomer.read_exact(&mut [0; 12]).await.unwrap();
    let mut bytes = 1;
    let mut buffer = vec![0; 1 << 20];
    let whole = timeout(6 * PATIENCE, async {
        loop {
            match reading.read(&mut buffer).await.unwrap() {
                0 => return bytes,
                more => bytes += more,
            }
        }
    });
    let bytes = whole.await.expect("it is read in time");
    assert!(bytes > 128 * VALUE_BYTES_MAX, "{bytes}");
}
