//! Ends of processes with `enableGracefulShutdown`.

use super::{Other, ROLE, again, create, in_a_child, said, say, wait_for_end_of_input};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use transfer_engine::*;

/// Held by a test while a store shall answer no deletion.
type Gate = Arc<Mutex<()>>;

/// The entries of a store, by the target of the request.
type Entries = Arc<Mutex<BTreeMap<String, Vec<u8>>>>;

/// Answers a metadata store's clients, and reports the method of each request.
fn store() -> (String, mpsc::Receiver<String>, Gate) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/metadata", listener.local_addr().unwrap());
    let (methods, received) = mpsc::channel();
    let (gate, listening) = (Gate::default(), std::thread::Builder::new());
    let kept = (gate.clone(), Entries::default());
    listening
        .spawn(move || {
            for stream in listener.incoming() {
                let (stream, methods, kept) = (stream.unwrap(), methods.clone(), kept.clone());
                let serving = std::thread::Builder::new();
                serving.spawn(move || serve(stream, &methods, &kept)).unwrap();
            }
        })
        .unwrap();
    (address, received, gate)
}

/// Answers one client until it leaves.
fn serve(stream: TcpStream, methods: &mpsc::Sender<String>, kept: &(Gate, Entries)) -> Option<()> {
    let (gate, entries) = kept;
    let mut input = BufReader::new(stream.try_clone().ok()?);
    loop {
        let (mut line, mut length) = (String::new(), 0);
        input.read_line(&mut line).ok().filter(|bytes| *bytes > 0)?;
        let mut words = line.split(' ').map(str::to_owned);
        let (method, entry) = (words.next()?, words.next()?);
        while line.trim() != "" {
            line.clear();
            input.read_line(&mut line).ok()?;
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().ok()?;
            }
        }
        let mut value = Vec::new();
        input.by_ref().take(length).read_to_end(&mut value).ok()?;
        // The test may have ended.
        methods.send(method.clone()).ok()?;
        drop((method == "DELETE").then(|| gate.lock()));
        let found = match &*method {
            "GET" => entries.lock().get(&entry).cloned(),
            "PUT" => Some(entries.lock().insert(entry, value).unwrap_or_default()),
            _ => entries.lock().remove(&entry),
        };
        let status = if found.is_some() { "200 OK" } else { "404 Not Found" };
        let found = found.filter(|_| method == "GET").unwrap_or_default();
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", found.len());
        (&stream).write_all(&[head.as_bytes(), &found].concat()).ok()?;
    }
}

/// The other side of the next test: its engine is never destroyed.
fn end_gracefully(role: &str) {
    let (role, store) = role.split_once(' ').unwrap();
    let engine = create(store, "node", "127.0.0.1", 0, 1);
    let memory = vec![0_u8; 4_096].leak();
    // SAFETY: the memory is never freed.
    let registered =
        unsafe { registerLocalMemory(engine, memory.as_mut_ptr().cast(), 4_096, c"*".as_ptr(), 1) };
    assert_eq!(registered, 0);
    enableGracefulShutdown(engine);
    enableGracefulShutdown(engine);
    if role == "twice" {
        in_a_child(|| {
            let engine = create(store, "child", "127.0.0.1", 0, 1);
            enableGracefulShutdown(engine);
            enableGracefulShutdown(engine);
            // SAFETY: ends the child, which waits for it.
            unsafe { libc::raise(libc::SIGTERM) };
        })
    }
    if role == "forked" {
        // SAFETY: ends the child.
        in_a_child(|| assert_eq!(unsafe { libc::raise(libc::SIGTERM) }, 0));
    }
    say("ready");
    if role == "first" {
        // SAFETY: ends the process.
        unsafe { libc::kill(libc::getpid(), libc::SIGTERM) };
        loop {
            std::thread::park();
        }
    }
    wait_for_end_of_input();
}

/// After `enableGracefulShutdown` the engine leaves its store at exit, and on a signal, which then
/// ends the process as ever. A child's signal is not taken for its parent's, and a child can enable
/// it for an engine of its own.
#[test]
fn process_with_graceful_shutdown_leaves_the_store() {
    let this = "graceful::process_with_graceful_shutdown_leaves_the_store";
    if let Ok(role) = std::env::var(ROLE) {
        return end_gracefully(&role);
    }
    for (role, signal) in
        [("alone", libc::SIGTERM), ("alone", libc::SIGINT), ("forked", 0), ("twice", 0)]
    {
        let (store, methods, _) = store();
        let mut process = again(&format!("{role} {store}"), this);
        let process = &mut process.0;
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let input = process.stdin.take();
        assert_eq!(said(&mut lines), "ready");
        let has_left = methods.try_iter().any(|method| method == "DELETE");
        assert_eq!(has_left, role == "twice", "only a child has left the store");
        // SAFETY: signals a child of this test.
        assert_eq!(unsafe { libc::kill(process.id() as libc::pid_t, signal) }, 0);
        let _open = input.filter(|_| signal != 0);
        let ended = process.wait().unwrap();
        assert_eq!(ended.signal().unwrap_or(0), signal, "{ended}");
        assert!(methods.try_iter().any(|method| method == "DELETE"), "it has left the store");
    }
}

/// The kernel discards a signal without a handler for the first process of a container.
#[test]
fn first_process_of_a_container_ends_by_a_signal() {
    let this = "graceful::first_process_of_a_container_ends_by_a_signal";
    if let Ok(role) = std::env::var(ROLE) {
        return end_gracefully(&role);
    }
    let contained = || {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child"]);
        command
    };
    if !contained().arg("true").status().is_ok_and(|status| status.success()) {
        // The macros that print would print into the capture.
        return std::io::stderr().write_all(b"skipped: no `unshare --user --pid`\n").unwrap();
    }
    let (store, _methods, _) = store();
    let mut command = contained();
    command.arg(std::env::current_exe().unwrap()).args(["--exact", this, "--nocapture"]);
    command.env(ROLE, format!("first {store}")).stdin(Stdio::null());
    let mut process = Other(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
    assert_eq!(said(&mut lines), "ready");
    let mut tries = 0..1_000;
    let ended = tries.find_map(|_| {
        std::thread::sleep(Duration::from_millis(20));
        process.0.try_wait().unwrap()
    });
    assert_eq!(ended.expect("it ends").code(), Some(128 + libc::SIGTERM));
}

/// A program that returns from its main function while a signal closes its engine ends after that.
#[test]
fn exit_during_a_close_waits_for_the_close() {
    let this = "graceful::exit_during_a_close_waits_for_the_close";
    if let Ok(role) = std::env::var(ROLE) {
        return end_gracefully(&role);
    }
    let (store, methods, gate) = store();
    let mut process = again(&format!("leaving {store}"), this);
    let process = &mut process.0;
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    assert_eq!(said(&mut lines), "ready");
    let held = gate.lock();
    let started = Instant::now();
    // SAFETY: signals a child of this test.
    assert_eq!(unsafe { libc::kill(process.id() as libc::pid_t, libc::SIGTERM) }, 0);
    // Of the close by the signal: the main function has not returned.
    while methods.recv_timeout(Duration::from_secs(60)).expect("the engine closes") != "DELETE" {}
    drop(process.stdin.take());
    let mut ended = None;
    while ended.is_none() && started.elapsed() < Duration::from_secs(1) {
        std::thread::sleep(Duration::from_millis(20));
        ended = process.try_wait().unwrap();
    }
    // The close goes on without the store 2 s after the signal.
    assert!(ended.is_none() || started.elapsed() > Duration::from_secs(1), "{ended:?}");
    drop(held);
    process.wait().unwrap();
}
