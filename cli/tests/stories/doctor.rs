//! `handfast doctor` as users run it, on this machine.

mod answering;
mod namespaces;

use crate::helpers::{Client, Ended, Folder, PROGRAM, Process, Server, a_processor, run, succeed};
use crate::output::on_terminal;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

/// The findings of a report, by id.
pub(crate) fn ids(report: &str) -> Vec<String> {
    findings(report).iter().map(|finding| finding["id"].as_str().unwrap().to_owned()).collect()
}

pub(crate) fn findings(report: &str) -> Vec<Value> {
    let report: Value = serde_json::from_str(report).unwrap();
    let checks = report["checks"].as_array().unwrap();
    checks.iter().flat_map(|check| check["findings"].as_array().unwrap()).cloned().collect()
}

/// It ends with its report, whatever it is to listen at.
pub(crate) fn doctor(arguments: &[&str]) -> Ended {
    doctor_of(Command::new(PROGRAM), arguments)
}

/// The same, started so.
fn doctor_of(mut command: Command, arguments: &[&str]) -> Ended {
    command.args(["doctor", "--json", "--once"]).args(arguments);
    Client::spawn(command).end()
}

#[test]
fn a_busy_port_is_found_with_its_owner_and_exit_code_1() {
    let server = Server::start(&["--memory", "m=1M"]);
    let ended =
        doctor(&["--transport", "tcp", "--listen", &server.address]).failed(1, &["1 fatal"]);
    let finding =
        findings(&ended.output).into_iter().find(|finding| finding["id"] == "PORT-IN-USE").unwrap();
    assert_eq!(finding["command"], format!("kill {}", server.pid()));
    assert!(finding["observed"].as_str().unwrap().contains("handfast, process"), "{finding}");
    doctor(&["--transport", "tcp", "--listen", "127.0.0.1:0"]).done();
}

#[test]
fn it_takes_what_serve_takes_and_refuses_what_nobody_does() {
    let own = a_processor();
    let serve = [
        "--listen",
        "127.0.0.1:0",
        "--name",
        "n",
        "--memory",
        "m=1M",
        "--read-only",
        "--cores",
        &own,
        "--metadata",
        "p2p",
        "--metrics",
        "127.0.0.1:0",
        "--record",
        "no such folder/run.trace",
        "--record-bytes",
        "1M",
        "--nic-priority-matrix",
        "no such file",
    ];
    doctor(&[&["--transport", "tcp"], &serve[..]].concat()).done();
    assert_eq!(doctor(&["--memory", "none"]).code, Some(2));
    for option in ["--listen", "--peer", "--advertise", "--metrics"] {
        for wrong in ["127.0.0.1:99999", "127.0.0.1:abc", ":7412"] {
            doctor(&[option, wrong]).failed(2, &[wrong]);
        }
    }
    for (wrong, code, words) in [
        (&["--name", "a@b"][..], 2, "name"),
        (&["--cores", "99999"], 2, "no processor 99999"),
        (&["--memory", "a=1M", "--memory", "a=1M"], 2, "two segments"),
        (&["--memory", "1000T"], 1, "[MEM-ALLOCATION]"),
        (&["--file", "/nonexistent/file"], 5, "No such file"),
    ] {
        let ended = doctor(wrong).failed(code, &[words]);
        assert!(ended.output.contains("\"checks\""), "the report comes first: {ended:?}");
    }
    doctor(&["--peer", "127.0.0.1"]).failed(2, &["has no port"]);
    doctor(&["--metadata", "p2p", "--segment", "a"]).failed(2, &["--segment"]);
    let ended = doctor(&["--metadata", "http://127.0.0.1:99999/x"]).failed(1, &[]);
    assert!(ids(&ended.output).contains(&"ETCD-URL".to_owned()), "{ended:?}");
    let folder = Folder::new();
    doctor(&["--root", &folder.name("nothing")]).failed(2, &["/proc"]);
}

/// A doctor that answers.
fn answering() -> (Process, String) {
    answering_of(Command::new(PROGRAM), "127.0.0.1:0", "tcp")
}

/// The same, started so.
pub(crate) fn answering_of(
    mut command: Command,
    listen: &str,
    transport: &str,
) -> (Process, String) {
    command.args(["doctor", "--listen", listen, "--transport", transport, "--json"]);
    let mut process = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut errors = BufReader::new(process.stderr.take().unwrap());
    let mut line = String::new();
    errors.read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("answering at ").unwrap().to_owned();
    std::thread::spawn(move || errors.read_to_end(&mut Vec::new()));
    (Process(process), address)
}

#[test]
fn doctors_compare_and_survive_foreign_connections() {
    let (_process, address) = answering();
    for _ in 0..2 {
        let ended = doctor(&["--transport", "tcp", "--peer", &address]).done();
        let report: Value = serde_json::from_str(&ended.output).unwrap();
        assert!(report["peer"].is_string(), "{report}");
        // A foreign connection is closed, and the next doctor is answered.
        let mut stream = TcpStream::connect(&address).unwrap();
        std::io::Write::write_all(&mut stream, b"GET / HTTP/1.1\r\n\r\n").unwrap();
        assert_eq!(stream.read(&mut [0; 16]).unwrap_or(0), 0);
    }
    let server = Server::start(&["--memory", "m=1M"]);
    let ended = doctor(&["--transport", "tcp", "--peer", &server.address]);
    assert_eq!(
        (ended.code, ids(&ended.output).contains(&"NET-RESET".to_owned())),
        (Some(1), true),
        "{ended:?}"
    );
    drop(server);
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = mute.local_addr().unwrap().to_string();
    let ended = doctor(&["--transport", "tcp", "--peer", &address]).failed(1, &[]);
    assert!(ids(&ended.output).contains(&"NET-FILTERED".to_owned()), "{ended:?}");
    assert!(ended.output.contains("sent nothing within 8 s"), "{ended:?}");
    let ended = doctor(&["--transport", "tcp", "--peer", "127.0.0.1:1"]).failed(1, &[]);
    assert!(ids(&ended.output).contains(&"NET-REFUSED".to_owned()), "{ended:?}");
}

#[test]
fn comparison_names_the_host_at_fault() {
    let (_process, address) = answering();
    let ask = |more: &[&str]| {
        run(&[&["doctor", "--transport", "tcp", "--peer", &address], more].concat()).output
    };
    let report: Value = serde_json::from_str(&ask(&["--json"])).unwrap();
    let host = report["peer"].as_str().unwrap();
    let halves = &report["halves"];
    assert_eq!(halves["here"]["kernel"], halves["there"]["kernel"], "it is one machine");
    let words = ask(&["--lang", "en"]);
    assert!(words.contains("this host") && words.contains("the other host"), "{words}");
    assert!(words.matches(host).count() >= 2, "{host} twice in {words}");
    let words = ask(&["--lang", "zh"]);
    assert!(words.contains("本机") && words.contains("对端主机"), "{words}");
}

#[test]
fn what_was_seen_is_told_in_chinese_too() {
    let server = Server::start(&["--memory", "m=1M"]);
    let ended = run(&["doctor", "--once", "--transport", "tcp", "--listen", &server.address]);
    assert!(ended.output.contains("handfast, process"), "{ended:?}");
    let chinese = ["doctor", "--once", "--transport", "tcp", "--lang", "zh", "--listen"];
    let ended = run(&[&chinese[..], &[&server.address]].concat());
    assert!(ended.output.contains(&format!("{} 由 handfast", server.address)), "{ended:?}");
    // An address that cannot be listened at ends the command.
    let ended = run(&["doctor", "--transport", "tcp", "--listen", &server.address]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
}

#[test]
fn bundle_is_written_to_a_new_private_file() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let file = folder.name("bundle.json");
    let store = "me:se/cr,et@127.0.0.1:1";
    let ask = ["doctor", "--transport", "tcp", "--metadata", store, "--bundle", &file];
    let ended = run(&ask);
    assert!(ended.errors.contains("wrote"), "{ended:?}");
    let text = std::fs::read_to_string(&file).unwrap();
    let bundle: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(bundle["bundle"], 1);
    assert_eq!(bundle["asked"]["metadata"], "127.0.0.1:1");
    assert!(!text.contains("se/cr") && !text.contains("cr,et"), "{text}");
    assert!(bundle["facts"]["interfaces"].is_array() && bundle["report"]["checks"].is_array());
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_eq!(bundle["report"]["host"] == host.trim(), host.trim().len() < 3, "{host}");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    run(&ask).failed(5, &["bundle.json", "exists"]);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
}

#[test]
fn errors_name_their_page_and_the_page_exists() {
    let folder = Folder::new();
    let file = folder.patterned("file", 10, 0);
    let ended = run(&["put", &file, "127.0.0.1:1"])
        .failed(3, &["[NET-REFUSED]", "handfast explain NET-REFUSED"]);
    let mut command = Command::new("sh");
    command.args(["-c", &format!("'{PROGRAM}' explain --json \"$0\""), &ended.errors]);
    let explained: Value = serde_json::from_str(&Client::spawn(command).end().output).unwrap();
    assert_eq!(explained["first"]["id"], "NET-REFUSED");
    succeed(&["explain", "NET-REFUSED"]);
}

#[test]
fn whoever_is_asked_in_vain_is_told_of_with_a_page() {
    let server = Server::start(&["--memory", "a=1M", "--memory", "b=1M"]);
    run(&["top", "127.0.0.1:1"]).failed(3, &["[NET-REFUSED]"]);
    run(&["top", &server.address]).failed(3, &["[NET-RESET]"]);
    run(&["metadata", "--listen", &server.address]).failed(8, &["[PORT-IN-USE]"]);
    let folder = Folder::new();
    let file = folder.patterned("file", 10, 0);
    let ended = run(&["put", &file, &server.address]).failed(4, &["[SEG-NAME]", "our side"]);
    assert!(ended.errors.contains("name one: a, b"), "{ended:?}");
    #[cfg(not(feature = "etcd"))]
    run(&["serve", "--listen", "127.0.0.1:0", "--metadata", "etcd://127.0.0.1:1"])
        .failed(2, &["[BUILD-FEATURE]", "--features etcd"]);
}

#[test]
fn a_web_page_in_place_of_a_metadata_store_is_told_in_one_line() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/metadata", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, page) = (stream.unwrap(), "<p>\u{1b}[2J\r\n".repeat(50));
            // The client may be gone by then.
            let _ = stream.read(&mut [0; 4096]);
            let head = "HTTP/1.1 501 Unsupported method\r\nConnection: close\r\nContent-Length:";
            let answer = format!("{head} {}\r\n\r\n{page}", page.len());
            let _ = std::io::Write::write_all(&mut stream, answer.as_bytes());
        }
    });
    let ended = run(&["serve", "--listen", "127.0.0.1:0", "--metadata", &url])
        .failed(3, &["writing to the metadata store", "status 501", "[ETCD-DOWN]"]);
    let told = ended.errors.lines().find(|line| line.starts_with("error: ")).unwrap();
    assert!(told.contains("[ETCD-DOWN]") && told.len() < 600, "{told}");
    assert!(!told.contains("reading") && !ended.errors.contains('\u{1b}'), "{ended:?}");
}

#[test]
fn the_report_fits_the_terminal_and_has_colour_there_alone() {
    for columns in [60, 200] {
        let line = format!("'{PROGRAM}' doctor --lang en");
        let Some(ended) = on_terminal(columns, &line) else { return };
        assert!(ended.output.contains("\u{1b}["), "{ended:?}");
        let dumb = on_terminal(columns, &format!("TERM=dumb {line}")).unwrap();
        assert!(!dumb.output.contains('\u{1b}'), "{dumb:?}");
        let plain = on_terminal(columns, &format!("NO_COLOR=1 {line}")).unwrap();
        assert!(!plain.output.contains('\u{1b}'), "{plain:?}");
        for shown in plain.output.lines().map(str::trim_end) {
            let is_command = shown.trim_start().starts_with('$');
            assert!(
                shown.chars().count() <= usize::from(columns) || is_command,
                "{columns}: {shown}"
            );
        }
    }
    let ended = run(&["doctor", "--lang", "zh"]);
    assert!(!ended.output.contains('\u{1b}') && ended.output.contains("环境变量"), "{ended:?}");
}
