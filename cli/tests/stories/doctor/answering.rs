//! An answering doctor and the connections to its port.

use super::{doctor, ids};
use crate::helpers::{Folder, PROGRAM, Process, run, until};
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Connections that a doctor waits for at once.
const CONNECTIONS_MAX: usize = 64;
/// For how long it waits for one to say something.
const SILENT_MAX: Duration = Duration::from_secs(3);

/// A doctor that answers, and what it says meanwhile.
struct Answering {
    _process: Process,
    folder: Folder,
    address: String,
}

impl Answering {
    fn start() -> Self {
        Self::start_at("127.0.0.1:0")
    }

    fn start_at(listen: &str) -> Self {
        let folder = Folder::new();
        let errors = File::create(folder.join("errors")).unwrap();
        let mut command = Command::new(PROGRAM);
        command.args(["doctor", "--listen", listen, "--lang", "en"]);
        let process = Process(command.stdout(Stdio::null()).stderr(errors).spawn().unwrap());
        let mut answering = Self { _process: process, folder, address: String::new() };
        until("it answers", || answering.errors().contains("answering at "));
        let errors = answering.errors();
        let line = errors.lines().find_map(|line| line.strip_prefix("answering at "));
        answering.address = line.unwrap().to_owned();
        answering
    }

    fn errors(&self) -> String {
        std::fs::read_to_string(self.folder.join("errors")).unwrap()
    }

    /// The findings of a doctor that compares itself with this one.
    fn compared(&self) -> Vec<String> {
        ids(&doctor(&["--peer", &self.address]).output)
    }
}

/// Whether it is closed at the other end; waits for that.
fn ends(mut stream: &TcpStream) -> bool {
    stream.set_read_timeout(Some(2 * SILENT_MAX)).unwrap();
    stream.read(&mut [0; 16]).is_ok_and(|bytes| bytes == 0)
        || stream.take_error().is_ok_and(|error| error.is_some())
}

/// A doctor that other machines reach warns of it once.
#[test]
fn doctor_beyond_this_machine_warns() {
    let answering = Answering::start_at("0.0.0.0:0");
    let warning = "warning: --listen: every host that reaches 0.0.0.0:";
    until("it warns", || answering.errors().matches(warning).count() == 1);
    assert!(!Answering::start().errors().contains("every host"), "on loopback");
}

#[test]
fn who_says_nothing_keeps_nobody_waiting_and_is_sent_away() {
    let answering = Answering::start();
    let started = Instant::now();
    let idle: Vec<_> =
        (1..CONNECTIONS_MAX).map(|_| TcpStream::connect(&answering.address).unwrap()).collect();
    let found = answering.compared();
    assert!(!found.contains(&"NET-RESET".to_owned()), "{found:?}");
    assert!(idle.iter().all(ends));
    assert!(started.elapsed() < 3 * SILENT_MAX, "{:?}", started.elapsed());
}

/// A later connection is answered again once another has ended.
#[test]
fn excess_doctor_connections_are_closed_at_once() {
    let answering = Answering::start();
    let idle: Vec<_> =
        (0..CONNECTIONS_MAX).map(|_| TcpStream::connect(&answering.address).unwrap()).collect();
    let past = TcpStream::connect(&answering.address).unwrap();
    let started = Instant::now();
    assert!(ends(&past) && started.elapsed() < SILENT_MAX);
    assert!(answering.errors().contains("not answered: 64 connections at once"));
    assert!(idle.iter().all(ends));
    until("there is room again", || !answering.compared().contains(&"NET-RESET".to_owned()));
}

/// A doctor that never asked gets no report.
#[test]
fn missing_lane_port_is_reported_once() {
    let answering = Answering::start();
    let mut stream = TcpStream::connect(&answering.address).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    until("it was sent away", || {
        answering.errors().contains("not answered: the answering process is not a doctor")
    });
    assert!(!answering.errors().contains("no lane over RDMA"), "{}", answering.errors());
    let taken = answering.compared();
    answering.compared();
    until("both are answered", || answering.errors().matches("\nanswered ").count() == 2);
    let reports = answering.errors().matches("no lane over RDMA is taken").count();
    assert!(reports <= 1, "{reports} times, {taken:?}");
}

#[test]
fn who_stops_reading_gets_no_complaint() {
    for command in ["explain NET-REFUSED", "explain --list", "doctor --lang en"] {
        let mut shell = Command::new("bash");
        let line = format!("'{PROGRAM}' {command} | true; echo ${{PIPESTATUS[0]}}");
        let ended = shell.args(["-c", &line]).output().unwrap();
        let errors = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(errors, "", "{command}");
        let code = String::from_utf8(ended.stdout).unwrap();
        // Or it was done with before anybody had stopped.
        assert!(["141", "0"].contains(&code.trim()), "{command}: {code}");
    }
    assert_eq!(run(&["explain", "NET-REFUSED"]).code, Some(0));
}
