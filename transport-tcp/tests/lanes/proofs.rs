//! Lanes whose two sides prove a secret.

use crate::support::*;
use handfast_core::auth::{LANE_NONCE_BYTES, LANE_SECRET_BYTES};
use handfast_transport::Access;
use handfast_transport_tcp::{HELLO_BYTES, HelloRefusal, LANE_MAGIC, TcpLimits};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

const ROOT: [u8; LANE_SECRET_BYTES] = [7; LANE_SECRET_BYTES];

fn keyed() -> Setup {
    Setup { secrets: Some(ROOT), ..Setup::default() }
}

/// Two sides with the secret move bytes both ways, and the announcement has the secret.
#[tokio::test]
async fn sides_that_prove_the_secret_move_bytes() {
    let (a, b) = two_nodes(keyed()).await;
    let (there, region) = b.region(10_000, Access::READ_WRITE);
    let block = patterned(10_000, 3);
    a.write(block.whole(), &region, 0);
    until(|| bytes_of(&there) == bytes_of(&block)).await;
    let (here, region) = a.region(10_000, Access::READ_WRITE);
    b.write(there.whole(), &region, 0);
    until(|| bytes_of(&here) == bytes_of(&block)).await;
    let announced = b.transport.create(handfast_core::Lifecycle(8), 1).unwrap().token;
    assert_eq!(announced.len(), 2 * LANE_SECRET_BYTES);
    assert_eq!((a.counters().lanes_started, b.counters().lanes_started), (1, 1));
}

/// A side with keys dials nobody who announced a plain token, and a plain side refuses a proof.
#[tokio::test]
async fn plain_side_and_side_with_keys_have_no_lane() {
    for (first, second) in [(keyed(), Setup::default()), (Setup::default(), keyed())] {
        let (a, b) = (node(1, first).await, node(2, second).await);
        let _ours = a.transport.create(LANE, 1).unwrap();
        let theirs = b.transport.create(LANE, 2).unwrap();
        let wired = a.transport.connect(a.pair(7), b.pair(7), theirs).await;
        let error = wired.unwrap_err().to_string();
        assert!(error.contains("no secret") || error.contains("no token"), "{error}");
        assert_eq!(b.counters().lanes_started, 0);
    }
    let (dialler, plain) = (node(1, keyed()).await, node(2, Setup::default()).await);
    dialler.transport.create(LANE, 1).unwrap();
    let mut theirs = plain.transport.create(LANE, 2).unwrap();
    theirs.token = "07".repeat(LANE_SECRET_BYTES);
    let wired = dialler.transport.connect(dialler.pair(7), plain.pair(7), theirs).await;
    assert!(wired.unwrap_err().to_string().contains("feature"));
    assert_eq!(plain.counters().refused(HelloRefusal::Feature), 1);
}

/// A peer that announced another secret than it has cannot prove it, and the dialling side says so.
#[tokio::test]
async fn listening_side_without_the_secret_is_left() {
    let (a, b) = (node(1, keyed()).await, node(2, keyed()).await);
    a.transport.create(LANE, 1).unwrap();
    let mut theirs = b.transport.create(LANE, 2).unwrap();
    theirs.token = "07".repeat(LANE_SECRET_BYTES);
    let wired = a.transport.connect(a.pair(7), b.pair(7), theirs).await;
    assert!(wired.unwrap_err().to_string().contains("does not prove"));
    until(|| b.counters().hellos_truncated == 1).await;
    assert_eq!(b.counters().lanes_started, 0);
}

/// A lane whose peer announced the address of a stranger fails, and the stranger gets the hello alone.
#[tokio::test]
async fn stranger_at_an_announced_address_gets_a_hello() {
    for (setup, bytes) in
        [(Setup::default(), HELLO_BYTES), (keyed(), HELLO_BYTES + LANE_NONCE_BYTES)]
    {
        let (a, b) = (node(1, setup).await, node(2, setup).await);
        let stranger = TcpListener::bind("127.0.0.1:0").await.unwrap();
        a.transport.create(LANE, 1).unwrap();
        let mut theirs = b.transport.create(LANE, 2).unwrap();
        theirs.address = stranger.local_addr().unwrap().to_string();
        let answering = async {
            let (mut stream, _) = stranger.accept().await.unwrap();
            let hello = receive_bytes(&mut stream, bytes).await;
            assert_eq!(hello[..LANE_MAGIC.len()], LANE_MAGIC);
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
            assert!(is_closed(&mut stream).await, "nothing follows");
        };
        let (wired, ()) =
            tokio::join!(a.transport.connect(a.pair(7), b.pair(7), theirs), answering);
        assert!(wired.unwrap_err().to_string().contains("the answer to the hello is invalid"));
        assert_eq!((a.counters().lanes_started, b.counters().lanes_started), (0, 0));
    }
}

/// A hello without its proof is bounded in number and in time, and does not concern the lane.
#[tokio::test]
async fn challenges_without_a_proof_are_bounded() {
    let limits = TcpLimits { hellos_pending_max: 1, ..TcpLimits::default() };
    let timing = Setup::hello_ms(3_000).timing;
    let b = node(2, Setup { limits, timing, secrets: Some(ROOT), encrypts: false }).await;
    let theirs = b.transport.create(LANE, 2).unwrap();
    let mut bytes = hello(8, 0, RAW, b.pair(7)).to_vec();
    bytes[10] = 1;
    bytes.extend_from_slice(&[5; LANE_NONCE_BYTES]);
    let mut stalled = TcpStream::connect(&b.address).await.unwrap();
    stalled.write_all(&bytes).await.unwrap();
    assert_eq!(reason(&receive_bytes(&mut stalled, 16).await), 0, "a challenge");
    let (_, answer) = say(&b.address, &bytes).await;
    assert_eq!(reason(&answer), HelloRefusal::Busy as u16, "the limit");
    until(|| b.counters().hellos_overdue == 1).await;
    let a = node(1, keyed()).await;
    let ours = a.transport.create(LANE, 1).unwrap();
    let (one, other) = tokio::join!(
        a.transport.connect(a.pair(7), b.pair(7), theirs),
        b.transport.connect(b.pair(7), a.pair(7), ours),
    );
    one.unwrap();
    other.unwrap();
}
