//! Encrypted lanes, and a machine on their path.

use crate::support::*;
use handfast_core::auth::LANE_SECRET_BYTES;
use handfast_core::transport::Side;
use handfast_transport::{Access, CompletionStatus, DataPath, Direction, Posting, Region, SliceId};
use handfast_transport_tcp::{HelloRefusal, Net, TokioNet};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

const ROOT: [u8; LANE_SECRET_BYTES] = [7; LANE_SECRET_BYTES];
/// Bytes from the dialling side before its first record: hello, number and message of the session,
/// and after an answer its proof.
const OPENING_BYTES: [usize; 2] = [72 + 32 + 48, 32];
/// Most bytes of a record, with its length.
const RECORD_BYTES_MAX: usize = 2 + 65_535;

fn sealing() -> Setup {
    Setup { secrets: Some(ROOT), encrypts: true, ..Setup::default() }
}

/// Treatment of the records of the dialling side by the machine on the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    /// It passes them on.
    Honest,
    /// It changes one byte of the record of this number, counted from its begin or its end.
    Changed(usize, isize),
    /// It passes the record of this number on twice.
    Repeated(usize),
    /// It leaves the record of this number out.
    LeftOut(usize),
    /// It ends the connection within the record of this number.
    Cut(usize),
}

/// A machine on the path to a node, which records every byte of both directions.
struct Proxy {
    address: String,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl Proxy {
    async fn to(address: String, path: Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (at, seen) = (listener.local_addr().unwrap().to_string(), Arc::default());
        let recorded = Arc::clone(&seen);
        tokio::spawn(async move {
            let (near, _) = listener.accept().await.unwrap();
            let (from_near, to_near) = near.into_split();
            let far = TokioNet.connect(&address).await.unwrap();
            let (from_far, to_far) = far.into_split();
            tokio::spawn(pass(from_far, to_near, Arc::clone(&recorded)));
            let _ = pass_records(from_near, to_far, recorded, path).await;
        });
        Self { address: at, seen }
    }

    fn has_seen(&self, text: &[u8]) -> bool {
        self.seen.lock().unwrap().windows(text.len()).any(|seen| seen == text)
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, seen: Arc<Mutex<Vec<u8>>>) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        seen.lock().unwrap().extend_from_slice(&buffer[..count]);
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

async fn pass_records(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    seen: Arc<Mutex<Vec<u8>>>,
    path: Path,
) -> std::io::Result<()> {
    for bytes in OPENING_BYTES {
        let mut opening = vec![0; bytes];
        from.read_exact(&mut opening).await?;
        to.write_all(&opening).await?;
    }
    for number in 0.. {
        let mut record = vec![0; 2];
        from.read_exact(&mut record).await?;
        let length = usize::from(u16::from_le_bytes([record[0], record[1]]));
        record.resize(2 + length, 0);
        from.read_exact(&mut record[2..]).await?;
        seen.lock().unwrap().extend_from_slice(&record);
        match path {
            Path::Changed(of, at) if of == number => {
                let place = if at < 0 { record.len() - at.unsigned_abs() } else { 2 + at as usize };
                record[place] ^= 1;
            }
            Path::Repeated(of) if of == number => to.write_all(&record).await?,
            Path::LeftOut(of) if of == number => continue,
            Path::Cut(of) if of == number => {
                return to.write_all(&record[..record.len() / 2]).await;
            }
            _ => {}
        }
        to.write_all(&record).await?;
    }
    Ok(())
}

/// Two nodes, of which the first dials the second over a machine on the path.
async fn two_nodes_over(path: Path) -> (Node<TokioNet>, Node<TokioNet>, Proxy) {
    let (a, b) = (node(1, sealing()).await, node(2, sealing()).await);
    let proxy = Proxy::to(b.address.clone(), path).await;
    let ours = a.transport.create(LANE, 1).unwrap();
    let mut theirs = b.transport.create(LANE, 2).unwrap();
    theirs.address.clone_from(&proxy.address);
    let (one, other) = tokio::join!(
        a.transport.connect(a.pair(7), b.pair(7), theirs),
        b.transport.connect(b.pair(7), a.pair(7), ours),
    );
    one.unwrap();
    other.unwrap();
    (a, b, proxy)
}

/// Bytes of every size move both ways, in batches as well; nothing of them, and no address or key of
/// the memory, is readable on the path.
#[tokio::test]
async fn path_sees_no_byte_of_an_encrypted_lane() {
    let (a, b, proxy) = two_nodes_over(Path::Honest).await;
    for (seed, bytes) in [1, 100, 4_096, 65_503, 65_520, 1 << 20].into_iter().enumerate() {
        let block = patterned(bytes, seed as u8);
        let (there, region) = b.region(bytes, Access::READ_WRITE);
        a.write(block.whole(), &region, 0);
        until(|| bytes_of(&there) == bytes_of(&block)).await;
        let (here, own) = a.region(bytes, Access::READ_WRITE);
        b.write(there.whole(), &own, 0);
        until(|| bytes_of(&here) == bytes_of(&block)).await;
        let read = patterned(bytes, seed as u8 + 100);
        b.read(read.whole(), &own, 0);
        until(|| bytes_of(&read) == bytes_of(&block)).await;
        let text = bytes_of(&block);
        assert!(bytes < 100 || !proxy.has_seen(&text[..64]), "{bytes} bytes");
        for hidden in [region.key(), region.address(), own.key()] {
            assert!(!proxy.has_seen(&hidden.to_le_bytes()), "{hidden:#x}");
        }
    }
    let (there, region) = b.region(64 * 1_000, Access::READ_WRITE);
    let block = patterned(64 * 1_000, 99);
    a.sink.ended_now();
    for at in 0..64 {
        a.write(block.span(at * 1_000, 1_000).unwrap(), &region, at as u64 * 1_000);
    }
    let ended = a.sink.ended(64).await;
    assert!(ended.iter().all(|ended| ended.status == CompletionStatus::Done), "{ended:?}");
    assert_eq!(bytes_of(&there), bytes_of(&block));
    assert!(proxy.seen.lock().unwrap().len() > 2 << 20, "it saw everything");
    assert_eq!((a.sink.failures(), b.sink.failures()), (0, 0));
}

fn posting(slice: u64, region: &Region, seed: u8) -> Posting {
    let block = patterned(RECORD_BYTES_MAX, seed);
    Posting {
        slice: SliceId::from_bits(slice),
        direction: Direction::Write,
        span: block.whole(),
        remote: remote(region, 0),
        memory: None,
        region_key: None,
    }
}

/// A record that was changed in any place, repeated, left out or cut ends the lane with the peer named
/// as the side, and no byte of it reaches memory.
#[tokio::test]
async fn no_byte_of_a_changed_record_lands() {
    for path in [
        Path::Changed(0, 0),
        Path::Changed(0, 20),
        Path::Changed(0, 40_000),
        Path::Changed(0, -1),
        Path::LeftOut(0),
        Path::Cut(0),
    ] {
        let (a, b, _proxy) = two_nodes_over(path).await;
        let (there, region) = b.region(RECORD_BYTES_MAX, Access::READ_WRITE);
        a.transport.post(LANE, &mut vec![posting(900, &region, 1)]);
        let failed = b.sink.failure().await;
        assert_eq!((failed.side, &*failed.call), (Side::Peer, "receive"), "{path:?}: {failed}");
        let text = failed.to_string();
        let is_cut = path == Path::Cut(0);
        let cause = if is_cut { "in the middle of a record" } else { "does not open" };
        assert!(text.contains(cause), "{path:?}: {text}");
        assert!(bytes_of(&there).iter().all(|byte| *byte == 0), "{path:?}: a byte has landed");
        let [ended] = &a.sink.ended(1).await[..] else { panic!("one slice was posted") };
        assert_ne!(ended.status, CompletionStatus::Done, "{path:?}");
    }
}

/// A record that is passed on twice ends the lane at its second time, and writes nothing again.
#[tokio::test]
async fn repeated_record_writes_nothing_again() {
    let (a, b, _proxy) = two_nodes_over(Path::Repeated(1)).await;
    let (there, region) = b.region(100, Access::READ_WRITE);
    a.write(patterned(100, 1).whole(), &region, 0);
    a.sink.ended(1).await;
    let second = patterned(100, 2);
    a.write(second.whole(), &region, 0);
    let failed = b.sink.failure().await;
    assert!(failed.to_string().contains("does not open"), "{failed}");
    assert_eq!(bytes_of(&there), bytes_of(&second), "once");
    assert_eq!(b.counters().lanes_failed, 1);
}

/// Both sides of a lane of which one side alone is encrypted learn which, and how to mend it; nothing
/// begins.
#[tokio::test]
async fn one_side_that_encrypts_has_no_lane() {
    let plain = || Setup { secrets: Some(ROOT), ..Setup::default() };
    for (first, second) in [(sealing(), plain()), (plain(), sealing())] {
        let (a, b) = (node(1, first).await, node(2, second).await);
        let ours = a.transport.create(LANE, 1).unwrap();
        let theirs = b.transport.create(LANE, 2).unwrap();
        for (own, peer, body, seals) in
            [(&a, &b, theirs, first.encrypts), (&b, &a, ours, second.encrypts)]
        {
            let error = own.transport.connect(own.pair(7), peer.pair(7), body).await.unwrap_err();
            assert_eq!((error.side, &*error.call), (Side::Configuration, "encrypt"));
            let side = if seals { "this node encrypts" } else { "the peer encrypts" };
            let text = error.to_string();
            assert!(text.contains(side) && text.contains("--encrypt-lanes"), "{text}");
        }
        assert_eq!((a.counters().lanes_started, b.counters().lanes_started), (0, 0));
    }
}

/// A hello without the session, or with one under another secret, is refused and does not concern the
/// lane, which opens for its peer afterwards.
#[tokio::test]
async fn hello_without_the_session_is_refused() {
    let (a, b) = (node(1, sealing()).await, node(2, sealing()).await);
    let theirs = b.transport.create(LANE, 2).unwrap();
    let mut bytes = hello(8, 0, RAW, b.pair(7)).to_vec();
    bytes[10] = 1;
    bytes.extend_from_slice(&[5; 32]);
    let (mut stream, answer) = say(&b.address, &bytes).await;
    assert_eq!(reason(&answer), HelloRefusal::Sealing as u16);
    assert!(is_closed(&mut stream).await);
    bytes[10] = 3;
    bytes.extend_from_slice(&[5; 48]);
    let (_, answer) = say(&b.address, &bytes).await;
    assert_eq!(reason(&answer), HelloRefusal::Proof as u16);
    let ours = a.transport.create(LANE, 1).unwrap();
    let (one, other) = tokio::join!(
        a.transport.connect(a.pair(7), b.pair(7), theirs),
        b.transport.connect(b.pair(7), a.pair(7), ours),
    );
    one.unwrap();
    other.unwrap();
    let refused = |refusal| b.counters().refused(refusal);
    assert_eq!((refused(HelloRefusal::Sealing), refused(HelloRefusal::Proof)), (1, 1));
}
