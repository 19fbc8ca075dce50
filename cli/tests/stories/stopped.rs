//! The server is stopped while bytes move over TCP, and goes on later.

use crate::helpers::{Client, Folder, MIB, Server, TRIES_MAX, free_address, interrupted, succeed};
use handfast::{Cause, Engine, EngineTiming, Memory, Remote, Span, TransportChoice};
use rustix::process::Signal;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(3);
/// A busy machine is late by less; a transfer that waited for the stopped server would be by more.
const SLACK: Duration = Duration::from_millis(2_500);
/// A transfer must succeed by then once the peer is back.
const BACK_WITHIN: Duration = Duration::from_secs(3);

#[test]
fn put_to_stopped_server_ends_in_time_and_delays_none() {
    let folder = Folder::new();
    let file = folder.sparse("file", 256 * MIB);
    let small = folder.patterned("small", 100_000, 1);
    let (other, address) = (Server::start(&[]), free_address("127.0.0.1"));
    let ended = interrupted(|| {
        let stopped = Server::start_at(&address, &["--memory", "256M"]);
        let place = stopped.at("memory");
        let put = ["put", &file, &place, "--timeout", "3s", "--transport", "tcp"];
        let mut client = Client::start(&put);
        stopped.until_grown(16 * MIB, &mut client);
        let since = Instant::now();
        stopped.process.stop();
        let mut others = 0;
        while client.process.is_running() {
            let started = Instant::now();
            succeed(&["put", &small, &other.at("memory")]);
            assert!(started.elapsed() < SLACK, "another server's took {:?}", started.elapsed());
            others += 1;
        }
        let ended = client.end();
        let took = ended.at.saturating_duration_since(since);
        assert!(took < TIMEOUT + SLACK, "{took:?} after the stop");
        assert!(others > 0 || ended.code == Some(0));
        stopped.process.signal(Signal::CONT);
        succeed(&["put", &small, &place]);
        ended
    });
    ended.failed(6, &[&address, "the deadline passed", "indeterminate"]);
}

#[test]
fn retries_succeed_after_the_server_continues() {
    let folder = Folder::new();
    let file = folder.patterned("file", 96 * MIB, 5);
    let patience = ["--timeout", "500ms", "--retries", "30", "--transport", "tcp"];
    // The put may end before its server stops.
    let ended = (0..TRIES_MAX).find_map(|_| {
        let server = Server::start(&["--memory", "96M"]);
        let place = server.at("memory");
        let mut client = Client::start(&[&["put", &file, &place], &patience[..]].concat());
        server.until_grown(16 * MIB, &mut client);
        server.process.stop();
        // Longer than the timeout, so that it fails at least once.
        std::thread::sleep(Duration::from_millis(900));
        server.process.signal(Signal::CONT);
        Some(client.end().done()).filter(|ended| ended.errors.contains("attempt 1 failed"))
    });
    let ended = ended.expect("a put is stopped");
    assert!(ended.output.contains("verified"), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engine_reports_indeterminate_and_reconnects() {
    let (stopped, other) = (Server::start(&[]), Server::start(&[]));
    let engine = Engine::builder().transport(TransportChoice::Tcp).start().await.unwrap();
    let block = Memory::zeroed(MIB as usize).unwrap().whole();
    let segment = engine.open(&stopped.at("memory")).await.unwrap();
    let elsewhere = engine.open(&other.at("memory")).await.unwrap();
    segment.write(&block, 0).await.unwrap();
    elsewhere.write(&block, 0).await.unwrap();
    stopped.process.stop();
    let since = Instant::now();
    // Far more than sockets buffer, so that some of it has been sent and some has not.
    let large = Memory::zeroed(32 * MIB as usize).unwrap().whole();
    let transfer = segment.write(&large, 0).timeout(TIMEOUT).submit().await.unwrap();
    let failing = tokio::spawn(transfer);
    let mut others = 0;
    while !failing.is_finished() {
        let started = Instant::now();
        elsewhere.write(&block, 0).await.unwrap();
        assert!(started.elapsed() < SLACK, "another server's took {:?}", started.elapsed());
        others += 1;
    }
    let error = failing.await.unwrap().unwrap_err();
    assert!(since.elapsed() < TIMEOUT + SLACK, "{:?}", since.elapsed());
    assert!(matches!(error.cause(), Cause::DeadlinePassed), "{error}");
    assert_eq!(error.remote(), Some(Remote::Indeterminate), "{error}");
    assert!(others > 10, "only {others} other transfers meanwhile");
    stopped.process.signal(Signal::CONT);
    let back = Instant::now();
    segment.write(&block, 0).timeout(BACK_WITHIN).await.unwrap();
    assert!(back.elapsed() < BACK_WITHIN);
    engine.close().await;
}

/// More than two sockets take.
fn filled(byte: u8) -> Span {
    let memory = Memory::zeroed(32 * MIB as usize).unwrap();
    memory.copy_in(0, &vec![byte; 32 * MIB as usize]).unwrap();
    memory.whole()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_fence_no_byte_of_a_write_that_was_given_up_lands() {
    let server = Server::start(&[]);
    let engine = Engine::builder().transport(TransportChoice::Tcp).start().await.unwrap();
    let segment = engine.open(&server.at("memory")).await.unwrap();
    segment.fence().await.unwrap();
    segment.write(&filled(1), 0).await.unwrap();
    server.process.stop();
    // The server's sockets are full of it when the deadline passes, and it reads them when it goes on.
    let given_up = segment.write(&filled(2), 0).timeout(Duration::from_secs(1)).await;
    let error = given_up.unwrap_err();
    assert_eq!(error.remote(), Some(Remote::Indeterminate), "{error}");
    let fenced = tokio::time::timeout(Duration::from_millis(200), segment.fence()).await;
    assert!(!matches!(fenced, Ok(Ok(()))), "nothing is certain while the server is stopped");
    server.process.signal(Signal::CONT);
    let since = Instant::now();
    segment.fence().await.unwrap();
    assert!(since.elapsed() < Duration::from_secs(3), "{:?}", since.elapsed());
    let landed = segment.checksum(0, 32 * MIB).await.unwrap();
    segment.write(&filled(3), 0).await.unwrap();
    let sum = segment.checksum(0, 32 * MIB).await.unwrap();
    assert_ne!(sum, landed);
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(segment.checksum(0, 32 * MIB).await.unwrap(), sum, "late bytes landed");
    }
    engine.close().await;
}

/// The unresponsive lane has bytes in the server's sockets when the write succeeds on the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retried_write_lands_no_byte_of_its_first_attempt() {
    let server = Server::start(&[]);
    let timing = EngineTiming::default().with(|it| it.lane_timeout = Duration::from_millis(300));
    let builder = Engine::builder().transport(TransportChoice::Tcp);
    let engine = builder.timing(timing).start().await.unwrap();
    let segment = engine.open(&server.at("memory")).await.unwrap();
    segment.write(&filled(1), 0).await.unwrap();
    server.process.stop();
    let second = filled(2);
    let transfer = segment.write(&second, 0).timeout(Duration::from_secs(20)).submit().await;
    let writing = tokio::spawn(transfer.unwrap());
    let since = Instant::now();
    while engine.counters().tcp.lanes_retired == 0 {
        assert!(since.elapsed() < Duration::from_secs(10), "the unresponsive lane is not given up");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(!writing.is_finished(), "no success before the first attempt is fenced");
    server.process.signal(Signal::CONT);
    writing.await.unwrap().unwrap();
    assert!(engine.counters().life_cycle.published >= 2, "it was done on another lane");
    segment.write(&filled(3), 0).await.unwrap();
    let sum = segment.checksum(0, 32 * MIB).await.unwrap();
    assert_eq!(sum, filled(3).memory().crc32c(0, 32 * MIB as usize).unwrap());
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(segment.checksum(0, 32 * MIB).await.unwrap(), sum, "late bytes landed");
    }
    engine.close().await;
}
