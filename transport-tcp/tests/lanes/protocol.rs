//! A raw peer: what a lane sends byte by byte, and what it does with bytes it should not get.

use crate::support::*;
use handfast_core::transport::Side;
use handfast_transport::{Access, Completion, CompletionStatus, Memory, Region, Sent};
use handfast_transport_tcp::SLICE_BYTES_MAX;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

#[tokio::test]
async fn a_write_and_a_read_look_as_the_page_says() {
    let node = node(2, Setup::default()).await;
    let mut peer = raw_peer(&node, 8).await;
    let (memory, region) = node.region(64, Access::READ_WRITE);
    let write = RawFrame::to(WRITE, 0xABCD_EF01_2345_6789, &region, 5);
    peer.write_all(&write.encode()).await.unwrap();
    peer.write_all(b"hello").await.unwrap();
    assert_eq!(RawFrame::receive(&mut peer).await, RawFrame::done(write.tag, 0));
    assert_eq!(bytes_of(&memory)[..6], *b"hello\0");
    let read = RawFrame::to(READ, 77, &region, 4);
    peer.write_all(&read.encode()).await.unwrap();
    let data = RawFrame { kind: DATA, length: 4, ..RawFrame::done(77, 0) };
    assert_eq!(RawFrame::receive(&mut peer).await, data);
    assert_eq!(receive_bytes(&mut peer, 4).await, *b"hell");
    assert_eq!(RawFrame::receive(&mut peer).await, RawFrame::done(77, 0));

    let local = Memory::zeroed(3).unwrap();
    let slice = node.read(local.whole(), &region, 8);
    let asked = RawFrame::receive(&mut peer).await;
    let expected =
        RawFrame { address: region.address() + 8, ..RawFrame::to(READ, asked.tag, &region, 3) };
    assert_eq!(asked, expected);
    let data = RawFrame { kind: DATA, length: 3, ..RawFrame::done(asked.tag, 0) };
    peer.write_all(&data.encode()).await.unwrap();
    peer.write_all(b"xyz").await.unwrap();
    assert!(node.sink.ended_now().is_empty(), "its end is the done frame");
    peer.write_all(&RawFrame::done(asked.tag, 0).encode()).await.unwrap();
    assert_eq!(node.sink.ended(1).await, [Completion::done(slice)]);
    assert_eq!(bytes_of(&local), *b"xyz");
}

/// Sends raw bytes that break a lane, and checks the lane's error.
async fn breaks(bytes: &[u8], expected: &str) {
    let node = node(2, Setup::depth(4)).await;
    let mut peer = raw_peer(&node, 4).await;
    let (_, region) = node.region(64, Access::READ_WRITE);
    let local = Memory::zeroed(8).unwrap();
    // One read is outstanding, as tag 0.
    let slice = node.read(local.whole(), &region, 0);
    assert_eq!(RawFrame::receive(&mut peer).await.tag, 0);
    peer.write_all(bytes).await.unwrap();
    let error = node.sink.failure().await;
    assert_eq!((error.side, &*error.call), (Side::Peer, "frame"), "{error}");
    assert!(error.detail.contains(expected), "{error}");
    assert!(is_closed(&mut peer).await);
    assert_eq!(node.sink.ended_now().len(), 1, "the read {slice:?} was released");
    node.retire().await;
    assert_eq!((node.sink.failures(), local.holders()), (1, 1));
}

#[tokio::test]
async fn bytes_that_are_no_frame_break_the_lane() {
    let frame = RawFrame::done(0, 0);
    let mut unmarked = frame.encode();
    unmarked[2] = 0;
    breaks(&unmarked, "marker").await;
    breaks(&[0x41; 500], "marker").await;
    breaks(&RawFrame { kind: 0, ..frame }.encode(), "kind 0").await;
    breaks(&RawFrame { kind: 5, ..frame }.encode(), "kind 5").await;
    breaks(&RawFrame { status: 5, ..frame }.encode(), "status 5").await;
    let length = SLICE_BYTES_MAX as u32 + 1;
    breaks(&RawFrame { kind: WRITE, length, ..frame }.encode(), "too long").await;
}

#[tokio::test]
async fn answers_to_nothing_break_the_lane() {
    let data = RawFrame { kind: DATA, length: 8, ..RawFrame::done(0, 0) };
    breaks(&RawFrame::done(1, 0).encode(), "no outstanding").await;
    breaks(&RawFrame::done(1 << 32, 0).encode(), "no outstanding").await;
    breaks(&RawFrame::done(u64::MAX, 0).encode(), "no outstanding").await;
    breaks(&RawFrame { tag: 3, ..data }.encode(), "no outstanding").await;
    breaks(&RawFrame { length: 7, ..data }.encode(), "wrong bytes").await;
    breaks(&RawFrame::done(0, 0).encode(), "not at all").await;
    let mut twice = data.encode().to_vec();
    twice.extend([0; 8]);
    twice.extend(data.encode());
    breaks(&twice, "twice").await;
}

#[tokio::test]
async fn a_peer_that_asks_for_more_than_agreed_breaks_the_lane() {
    let read = RawFrame { kind: READ, ..RawFrame::done(1, 0) };
    let reads: Vec<u8> = (0..5).flat_map(|tag| RawFrame { tag, ..read }.encode()).collect();
    breaks(&reads, "the agreed 4").await;
    let dones: Vec<u8> = (0..5).flat_map(|tag| RawFrame::done(tag, 0).encode()).collect();
    breaks(&dones, "the agreed 4").await;
}

#[tokio::test]
async fn a_peer_that_asks_and_never_reads_is_held_to_the_depth() {
    let node = node(2, Setup::depth(4)).await;
    let mut peer = raw_peer(&node, 4).await;
    let (_, region) = node.region(SLICE_BYTES_MAX, Access::READ);
    for tag in 0..16 {
        let read = RawFrame::to(READ, tag, &region, SLICE_BYTES_MAX as u32);
        if peer.write_all(&read.encode()).await.is_err() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let error = node.sink.failure().await;
    assert!(error.detail.contains("the agreed 4"), "{error}");
}

/// Sends the first half of a write of 200 kB, and waits until it has landed.
pub(crate) async fn half_a_write(
    peer: &mut TcpStream,
    memory: &Memory,
    region: &Region,
) -> Vec<u8> {
    let source = bytes_of(&patterned(200_000, 6));
    let write = RawFrame::to(WRITE, 9, region, 200_000);
    peer.write_all(&write.encode()).await.unwrap();
    peer.write_all(&source[..100_000]).await.unwrap();
    until(|| bytes_of(memory)[..100_000] == source[..100_000]).await;
    source
}

/// A region unregistered during a write gets no more bytes.
#[tokio::test]
async fn unregistered_region_gets_no_more_bytes() {
    let node = node(2, Setup::default()).await;
    let mut peer = raw_peer(&node, 8).await;
    let (memory, region) = node.region(200_000, Access::READ_WRITE);
    let source = half_a_write(&mut peer, &memory, &region).await;
    let key = region.key();
    drop(region);
    drop(node.regions.unregister(key));
    assert_eq!(memory.holders(), 1, "a lane between two copies holds no memory");
    peer.write_all(&source[100_000..]).await.unwrap();
    assert_eq!(RawFrame::receive(&mut peer).await, RawFrame::done(9, 1), "the key is unknown now");
    assert!(bytes_of(&memory)[100_000..].iter().all(|byte| *byte == 0));
    assert_eq!(node.sink.failures(), 0);
}

/// A region unregistered during a read sends no more bytes.
#[tokio::test]
async fn unregistered_region_sends_no_more_bytes() {
    let node = node(2, Setup::default()).await;
    let mut peer = raw_peer(&node, 8).await;
    let (memory, region) = node.region(SLICE_BYTES_MAX, Access::READ);
    memory.copy_in(0, &vec![7; SLICE_BYTES_MAX]).unwrap();
    let read = RawFrame::to(READ, 3, &region, SLICE_BYTES_MAX as u32);
    peer.write_all(&read.encode()).await.unwrap();
    assert_eq!(RawFrame::receive(&mut peer).await.kind, DATA);
    tokio::time::sleep(std::time::Duration::from_millis(30)).await;
    let key = region.key();
    drop(region);
    drop(node.regions.unregister(key));
    assert_eq!(memory.holders(), 1);
    let bytes = receive_bytes(&mut peer, SLICE_BYTES_MAX).await;
    let split = bytes.iter().position(|byte| *byte == 0).expect("the socket could not hold it all");
    assert!(bytes[split..].iter().all(|byte| *byte == 0));
    assert_eq!(RawFrame::receive(&mut peer).await, RawFrame::done(3, 1));
}

/// A peer that dies during a write leaves the bytes that it wrote.
#[tokio::test]
async fn peer_dying_mid_write_leaves_its_bytes() {
    let node = node(2, Setup::default()).await;
    let mut peer = raw_peer(&node, 8).await;
    let (memory, region) = node.region(200_000, Access::READ_WRITE);
    let source = half_a_write(&mut peer, &memory, &region).await;
    drop(peer);
    let error = node.sink.failure().await;
    assert!(error.detail.contains("middle of a frame"), "{error}");
    assert_eq!(bytes_of(&memory)[..100_000], source[..100_000]);
    assert!(bytes_of(&memory)[100_000..].iter().all(|byte| *byte == 0));
    node.retire().await;
}

#[tokio::test]
async fn after_retiring_no_byte_lands() {
    let node = node(2, Setup::default()).await;
    let mut peer = raw_peer(&node, 8).await;
    let (memory, region) = node.region(200_000, Access::READ_WRITE);
    let source = half_a_write(&mut peer, &memory, &region).await;
    node.retire().await;
    memory.copy_in(0, &[0; 200_000]).unwrap();
    let _ = peer.write_all(&source[100_000..]).await;
    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    assert!(bytes_of(&memory).iter().all(|byte| *byte == 0));
    assert!(is_closed(&mut peer).await);
}

#[tokio::test]
async fn a_peer_that_reads_without_pause_does_not_keep_slices_waiting() {
    let node = node(2, Setup::depth(4)).await;
    let mut peer = raw_peer(&node, 4).await;
    let (_, region) = node.region(SLICE_BYTES_MAX, Access::READ);
    for tag in 0..4 {
        let read = RawFrame::to(READ, tag, &region, SLICE_BYTES_MAX as u32);
        peer.write_all(&read.encode()).await.unwrap();
    }
    assert_eq!(RawFrame::receive(&mut peer).await.kind, DATA);
    let local = patterned(10, 1);
    node.write(local.whole(), &region, 0);
    receive_bytes(&mut peer, SLICE_BYTES_MAX).await;
    assert_eq!(RawFrame::receive(&mut peer).await, RawFrame::done(0, 0));
    assert_eq!(RawFrame::receive(&mut peer).await.kind, WRITE, "three answers still wait");
}

#[tokio::test]
async fn an_answer_to_an_earlier_use_of_a_slot_names_nothing() {
    let node = node(2, Setup::depth(1)).await;
    let mut peer = raw_peer(&node, 1).await;
    let (_, region) = node.region(64, Access::READ);
    let memory = patterned(10, 1);
    let mut tags = Vec::new();
    for _ in 0..2 {
        node.write(memory.whole(), &region, 0);
        tags.push(RawFrame::receive(&mut peer).await.tag);
        receive_bytes(&mut peer, 10).await;
        peer.write_all(&RawFrame::done(tags[0], 0).encode()).await.unwrap();
        if tags.len() == 1 {
            node.sink.ended(1).await;
        }
    }
    let error = node.sink.failure().await;
    assert!(error.detail.contains("no outstanding"), "{error}");
    assert_ne!(tags[0], tags[1]);
    assert!(matches!(
        node.sink.ended_now()[..],
        [Completion { status: CompletionStatus::Released(_), .. }]
    ));
}

#[tokio::test]
async fn a_peer_that_dies_while_we_write_frees_our_memory() {
    let node = node(2, Setup::default()).await;
    let peer = raw_peer(&node, 8).await;
    let (_, region) = node.region(64, Access::READ);
    let memory = patterned(SLICE_BYTES_MAX, 1);
    let partly = node.write(memory.whole(), &region, 0);
    let none = node.write(memory.whole(), &region, 0);
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    drop(peer);
    node.sink.failure().await;
    let released = |slice, sent| Completion::released(slice, sent);
    let expected = [released(partly, Sent::Partly), released(none, Sent::None)];
    assert_eq!(node.sink.ended_now(), expected);
    assert_eq!(memory.holders(), 1, "the lane is not retired yet, and holds no memory");
}
