//! `handfast serve`: what it serves, what it refuses, how it ends.

use crate::helpers::{
    Client, Folder, MIB, PROGRAM, Process, Server, descriptors, interrupted, run, skipped, succeed,
    until,
};
use rustix::process::Signal;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Command, Stdio};

#[test]
fn served_file_is_on_disk_when_the_server_ends() {
    for signal in [Signal::TERM, Signal::INT] {
        let folder = Folder::new();
        let served = folder.sparse("served", 4 * MIB);
        let source = folder.patterned("source", 3 * MIB, 7);
        let mut server = Server::start(&["--file", &format!("data={served}")]);
        succeed(&["put", &source, &server.at("data:1M")]);
        server.process.signal(signal);
        assert_eq!(server.process.wait().code(), Some(0));
        assert!(folder.read("served", MIB, 3 << 20) == std::fs::read(&source).unwrap());
        assert!(folder.read("served", 0, 1 << 20).iter().all(|byte| *byte == 0));
    }
}

#[test]
fn two_segments_are_served_side_by_side() {
    let folder = Folder::new();
    let file = folder.patterned("file", MIB, 1);
    let server = Server::start(&["--memory", "cache=2M", "--file", &file, "--name", "node"]);
    assert!(server.lines[0].ends_with(" as node"), "{:?}", server.lines);
    assert_eq!(server.lines[1], "segment cache of 2.0 MiB");
    assert!(server.lines[2].starts_with("segment file of 1.0 MiB, the file "));
    let other = folder.patterned("other", MIB, 2);
    succeed(&["put", &other, &server.at("cache:1M")]);
    succeed(&["get", &server.at("cache:1M"), &folder.name("from cache")]);
    succeed(&["get", &server.at("file"), &folder.name("from file")]);
    assert!(std::fs::read(folder.join("from cache")).unwrap() == std::fs::read(other).unwrap());
    assert!(std::fs::read(folder.join("from file")).unwrap() == std::fs::read(file).unwrap());
}

#[test]
fn a_node_is_served_and_reached_over_ipv6() {
    if TcpListener::bind("[::1]:0").is_err() {
        return skipped("this machine has no IPv6 loopback");
    }
    let folder = Folder::new();
    let file = folder.patterned("file", 100_000, 1);
    let server = Server::start_at("[::1]:0", &[]);
    assert!(server.address.starts_with("[::1]:"), "{}", server.address);
    succeed(&["put", &file, &server.at("memory:64K")]);
    succeed(&["get", &format!("{}:64K,100000", server.address), &folder.name("copy")]);
    assert!(std::fs::read(folder.join("copy")).unwrap() == std::fs::read(file).unwrap());
}

#[test]
fn a_server_that_cannot_start_says_why() {
    let folder = Folder::new();
    let serve = |options: &[&str]| run(&[&["serve", "--listen", "127.0.0.1:0"], options].concat());
    serve(&["--file", &folder.name("missing")]).failed(5, &["missing", "No such file"]);
    serve(&["--file", &folder.sparse("empty", 0)]).failed(5, &["is empty", "at least one byte"]);
    serve(&["--file", folder.path().to_str().unwrap()]).failed(5, &["is a directory"]);
    serve(&["--memory", "1M", "--memory", "2M"]).failed(2, &["two segments", "NAME=SIZE"]);
    serve(&["--memory", "a/b=1M"]).failed(2, &["a segment's name"]);
    serve(&["--memory", "0"]).failed(2, &["0 bytes are too few"]);
    serve(&["--memory", "1000T"]).failed(1, &["Cannot allocate memory"]);
    serve(&["--cores", "99999"]).failed(2, &["no processor 99999"]);
    run(&["serve", "--open", "--listen", "0.0.0.0:0"]).failed(2, &["advertise"]);
    for wrong in ["10.1.1.1:abc", "10.1.1.1:99999", "a b", ""] {
        serve(&["--advertise", wrong]).failed(2, &[wrong, "[CONFIG-INVALID]"]);
    }
    let pipe = folder.join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // Opening it for reading would wait for a writer.
    let path = pipe.to_str().unwrap();
    serve(&["--file", path, "--read-only"]).failed(5, &["is a pipe"]);
}

#[test]
fn a_port_in_use_is_refused_and_whoever_has_it_serves_on() {
    let folder = Folder::new();
    let file = folder.patterned("file", 10_000, 0);
    let server = Server::start(&[]);
    let second = run(&["serve", "--listen", &server.address]);
    second.failed(8, &[&server.address, "our side", "in use", "another --listen address"]);
    succeed(&["put", &file, &server.at("memory")]);
}

#[test]
fn output_that_nobody_takes_is_an_error_and_no_panic() {
    let folder = Folder::new();
    let file = folder.patterned("file", 10_000, 0);
    let server = Server::start(&[]);
    let full = || Stdio::from(std::fs::File::options().write(true).open("/dev/full").unwrap());
    let mut put = Command::new(PROGRAM);
    put.args(["put", &file, &server.at("memory")]).stdout(full()).stderr(Stdio::piped());
    let ended = put.output().unwrap();
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{errors}");
    assert!(errors.contains("writing to standard output failed: No space left"), "{errors}");
    let mut serve = Command::new(PROGRAM);
    serve.args(["serve", "--listen", "127.0.0.1:0"]).stdout(full()).stderr(full());
    assert_eq!(serve.status().unwrap().code(), Some(1));
}

#[test]
fn a_server_ends_with_the_process_that_started_it_when_told_so() {
    let mut server = Server::start(&[]);
    drop(server.process.0.stdin.take());
    let mut code = None;
    until("the server ends", || {
        code = server.process.0.try_wait().unwrap();
        code.is_some()
    });
    assert_eq!(code.unwrap().code(), Some(0));
}

#[test]
fn a_client_that_is_killed_leaves_nothing_behind_at_the_server() {
    let folder = Folder::new();
    let file = folder.sparse("file", 256 * MIB);
    let server = Server::start(&["--memory", "256M"]);
    let small = folder.patterned("small", 10_000, 0);
    let idle = descriptors(server.pid());
    for _ in 0..3 {
        let ended = interrupted(|| {
            let mut client = Client::start(&["put", &file, &server.at("memory")]);
            client.until("its lane is up", || descriptors(server.pid()) > idle);
            client.process.signal(Signal::KILL);
            client.end()
        });
        assert_eq!(ended.code, None);
        until("its lane is gone", || descriptors(server.pid()) <= idle);
    }
    succeed(&["put", &small, &server.at("memory")]);
}

#[test]
fn a_put_that_is_interrupted_says_so_and_the_server_serves_on() {
    let folder = Folder::new();
    let file = folder.sparse("file", 256 * MIB);
    let small = folder.patterned("small", 10_000, 0);
    let ended = interrupted(|| {
        let server = Server::start(&["--memory", "256M"]);
        let mut client = Client::start(&["put", &file, &server.at("memory")]);
        server.until_grown(8 * MIB, &mut client);
        client.process.signal(Signal::INT);
        let ended = client.end();
        succeed(&["put", &small, &server.at("memory")]);
        ended
    });
    ended.failed(130, &["interrupted"]);
}

/// The metadata server and the doctor that answers others do not listen at a port of the driver erdma either, unless
/// they are asked to.
#[test]
fn metadata_and_doctor_leave_out_ports_of_erdma() {
    if !Command::new("unshare").args(["-rn", "true"]).status().is_ok_and(|ended| ended.success()) {
        return skipped("it needs a network of its own");
    }
    let metadata = ["metadata", "--until-stdin-ends", "--listen"];
    let doctor = ["doctor", "--transport", "tcp", "--lang", "en", "--listen"];
    let starts = ["metadata at http://127.0.0.1:", "answering at 127.0.0.1:"];
    for (words, start) in [&metadata[..], &doctor].into_iter().zip(starts) {
        for (listen, ports) in [("127.0.0.1:0", [30_624, 30_625]), ("127.0.0.1:30610", [30_610; 2])]
        {
            let program = ["sh", "-c", "exec \"$0\" \"$@\" 2>&1", PROGRAM];
            let mut command = in_ports_of_erdma(&[&program, words, &[listen]].concat());
            let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut process = Process(command.spawn().unwrap());
            let lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
            let line = lines.map_while(Result::ok).find(|line| line.starts_with(start));
            let line = line.unwrap_or_else(|| panic!("{words:?} does not say where it listens"));
            let port = line[start.len()..].split('/').next().unwrap().parse::<u16>().unwrap();
            assert!(ports.contains(&port), "{words:?}: {line}");
        }
    }
}

/// A port that the kernel chooses is none of those that the driver erdma takes, although the kernel has two others
/// alone: of a range of odd length it does not always search the last port. A chosen one of them is served with a warning.
#[test]
fn ports_of_erdma_are_left_out() {
    if !Command::new("unshare").args(["-rn", "true"]).status().is_ok_and(|ended| ended.success()) {
        return skipped("it needs a network of its own");
    }
    let serve = [PROGRAM, "serve", "--until-stdin-ends", "--memory", "m=1M", "--transport", "tcp"];
    let serving = |listen: &str| in_ports_of_erdma(&[&serve[..], &["--listen", listen]].concat());
    let chosen = Server::spawn(serving("127.0.0.1:0"));
    assert!(
        ["127.0.0.1:30624", "127.0.0.1:30625"].contains(&&*chosen.address),
        "{}",
        chosen.address
    );
    for (port, is_warned) in [(30_607, false), (30_608, true), (30_623, true), (30_624, false)] {
        let mut command = serving(&format!("127.0.0.1:{port}"));
        let ended = command.stdin(Stdio::null()).output().unwrap();
        let errors = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{port}: {errors}");
        assert_eq!(errors.contains("ports 30608 to 30623"), is_warned, "{port}: {errors}");
    }
}

/// A command in a network whose kernel chooses the ports of erdma, and two others.
fn in_ports_of_erdma(words: &[&str]) -> Command {
    let script = "ip link set lo up && echo 30608 30625 > /proc/sys/net/ipv4/ip_local_port_range && \
                  exec \"$0\" \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["-rn", "sh", "-c", script]).args(words);
    command
}
