//! Slices taken back at every point of their life.

use crate::support::*;
use handfast_transport::{Access, Completion, Memory, Sent, SliceId};
use handfast_transport_tcp::{BYTES_ON_MACHINE_MAX, FRAME_HEADER_BYTES, SLICE_BYTES_MAX};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn released(slice: SliceId, sent: Sent) -> [Completion; 1] {
    [Completion::released(slice, sent)]
}

#[tokio::test]
async fn a_write_that_was_not_started_was_not_sent() {
    let node = node(2, Setup::default()).await;
    let mut peer = raw_peer(&node, 1).await;
    let (_, region) = node.region(64, Access::READ);
    let memory = patterned(10, 1);
    let first = node.write(memory.whole(), &region, 0);
    let second = node.write(memory.whole(), &region, 0);
    let third = node.write(memory.whole(), &region, 1);
    let frame = RawFrame::receive(&mut peer).await;
    node.withdraw(second);
    assert_eq!(node.sink.ended_now(), released(second, Sent::None));
    node.withdraw(second);
    node.withdraw(SliceId::from_bits(999));
    assert!(node.sink.ended_now().is_empty(), "a slice ends once");
    receive_bytes(&mut peer, 10).await;
    peer.write_all(&RawFrame::done(frame.tag, 0).encode()).await.unwrap();
    assert_eq!(node.sink.ended(1).await, [Completion::done(first)]);
    let frame = RawFrame::receive(&mut peer).await;
    assert_eq!(frame.address, region.address() + 1, "the second never comes");
    node.withdraw(first);
    assert!(node.sink.ended_now().is_empty());
    node.withdraw(third);
    assert_eq!(node.sink.ended_now(), released(third, Sent::All));
}

/// A half-sent write frees its memory and is still sent whole.
#[tokio::test]
async fn half_sent_write_frees_its_memory() {
    let node = node(2, Setup::default()).await;
    let mut peer = raw_peer(&node, 8).await;
    let (_, region) = node.region(64, Access::READ);
    let memory = patterned(SLICE_BYTES_MAX, 9);
    let expected = bytes_of(&memory);
    let behind = patterned(100, 3);
    let slice = node.write(memory.whole(), &region, 0);
    let waiting = node.write(behind.whole(), &region, 5);
    let last = node.write(behind.whole(), &region, 6);
    // The peer does not read, so the socket fills in the middle.
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    node.withdraw(slice);
    assert_eq!(node.sink.ended_now(), released(slice, Sent::Partly));
    assert_eq!(memory.holders(), 1, "the memory is free");
    memory.copy_in(0, &vec![0xEE; SLICE_BYTES_MAX]).unwrap();
    node.withdraw(waiting);
    assert_eq!(node.sink.ended_now(), released(waiting, Sent::None));

    let frame = RawFrame::receive(&mut peer).await;
    let mut bytes = receive_bytes(&mut peer, SLICE_BYTES_MAX).await;
    assert!(bytes == expected, "the frame is whole and has the old bytes");
    peer.write_all(&RawFrame::done(frame.tag, 0).encode()).await.unwrap();
    let next = RawFrame::receive(&mut peer).await;
    assert_eq!(next.address, region.address() + 6, "what was not begun is never sent");
    bytes = receive_bytes(&mut peer, 100).await;
    assert_eq!(bytes, bytes_of(&behind));
    peer.write_all(&RawFrame::done(next.tag, 0).encode()).await.unwrap();
    assert_eq!(node.sink.ended(1).await, [Completion::done(last)], "the late answer is ignored");
    assert_eq!(node.sink.failures(), 0);
}

#[tokio::test]
async fn a_write_that_was_sent_and_not_answered_was_sent() {
    let node = node(2, Setup::depth(1)).await;
    let mut peer = raw_peer(&node, 8).await;
    let (_, region) = node.region(64, Access::READ);
    let memory = patterned(10, 1);
    let slice = node.write(memory.whole(), &region, 0);
    let frame = RawFrame::receive(&mut peer).await;
    receive_bytes(&mut peer, 10).await;
    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    node.withdraw(slice);
    assert_eq!(node.sink.ended_now(), released(slice, Sent::All));
    assert_eq!(memory.holders(), 1);
    let next = node.write(memory.whole(), &region, 0);
    let one_more = node.write(memory.whole(), &region, 0);
    assert_eq!(node.sink.ended_now(), released(one_more, Sent::None), "one is held already");
    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    assert!(peer.try_read(&mut [0; 1]).is_err(), "the place on the wire is still taken");
    peer.write_all(&RawFrame::done(frame.tag, 0).encode()).await.unwrap();
    let frame = RawFrame::receive(&mut peer).await;
    peer.write_all(&RawFrame::done(frame.tag, 0).encode()).await.unwrap();
    assert_eq!(node.sink.ended(1).await, [Completion::done(next)]);
}

#[tokio::test]
async fn the_answer_to_a_withdrawn_read_is_thrown_away() {
    let node = node(2, Setup::default()).await;
    let mut peer = raw_peer(&node, 8).await;
    let (_, region) = node.region(64, Access::READ);
    let bytes = bytes_of(&patterned(100_000, 4));
    for already in [None, Some(0), Some(40_000), Some(100_000)] {
        let local = Memory::zeroed(100_000).unwrap();
        let slice = node.read(local.whole(), &region, 0);
        let tag = RawFrame::receive(&mut peer).await.tag;
        let data = RawFrame { kind: DATA, length: 100_000, ..RawFrame::done(tag, 0) };
        if let Some(count) = already {
            peer.write_all(&data.encode()).await.unwrap();
            peer.write_all(&bytes[..count]).await.unwrap();
            until(|| bytes_of(&local)[..count] == bytes[..count]).await;
        }
        node.withdraw(slice);
        assert_eq!(node.sink.ended_now(), released(slice, Sent::All));
        assert_eq!(local.holders(), 1);
        local.copy_in(0, &[0; 100_000]).unwrap();
        if already.is_none() {
            peer.write_all(&data.encode()).await.unwrap();
        }
        peer.write_all(&bytes[already.unwrap_or(0)..]).await.unwrap();
        peer.write_all(&RawFrame::done(tag, 0).encode()).await.unwrap();
        // The next answer comes after them all.
        let after = Memory::zeroed(5).unwrap();
        let slice = node.read(after.whole(), &region, 0);
        let tag = RawFrame::receive(&mut peer).await.tag;
        let data = RawFrame { kind: DATA, length: 5, ..RawFrame::done(tag, 0) };
        peer.write_all(&data.encode()).await.unwrap();
        peer.write_all(&[1; 5]).await.unwrap();
        peer.write_all(&RawFrame::done(tag, 0).encode()).await.unwrap();
        assert_eq!(node.sink.ended(1).await, [Completion::done(slice)]);
        assert!(bytes_of(&local).iter().all(|byte| *byte == 0), "{already:?}");
    }
}

#[tokio::test]
async fn an_answer_before_the_last_byte_is_reported_after_it() {
    let node = node(2, Setup::default()).await;
    let mut peer = raw_peer(&node, 8).await;
    let (_, region) = node.region(64, Access::READ);
    let memory = patterned(SLICE_BYTES_MAX, 9);
    let slice = node.write(memory.whole(), &region, 0);
    let frame = RawFrame::receive(&mut peer).await;
    peer.write_all(&RawFrame::done(frame.tag, 0).encode()).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(30)).await;
    assert!(node.sink.ended_now().is_empty(), "the memory is still being read");
    receive_bytes(&mut peer, SLICE_BYTES_MAX).await;
    assert_eq!(node.sink.ended(1).await, [Completion::done(slice)]);
}

#[tokio::test]
async fn a_write_taken_up_but_not_begun_was_not_sent() {
    // A pipe takes 64 KiB at a time, so the first write is out whole and nothing of the second.
    const TAKEN: usize = (64 << 10) - FRAME_HEADER_BYTES;
    let (node, mut peer) = piped_peer(32).await;
    let (_, region) = node.region(64, Access::READ);
    let memory = patterned(TAKEN, 1);
    let last = patterned(100, 2);
    let slices = [0, 1, 2].map(|offset| {
        let span = if offset == 2 { last.whole() } else { memory.whole() };
        node.write(span, &region, offset)
    });
    let mut begin = [0; FRAME_HEADER_BYTES];
    peer.read_exact(&mut begin).await.unwrap();
    node.withdraw(slices[1]);
    assert_eq!(node.sink.ended_now(), released(slices[1], Sent::None));
    node.withdraw(slices[0]);
    assert_eq!(node.sink.ended_now(), released(slices[0], Sent::All));
    assert_eq!(memory.holders(), 1);
    let mut rest = vec![0; TAKEN + FRAME_HEADER_BYTES + 100];
    peer.read_exact(&mut rest).await.unwrap();
    assert_eq!(rest[..TAKEN], bytes_of(&memory));
    assert_eq!(rest[TAKEN + FRAME_HEADER_BYTES..], bytes_of(&last), "the third comes next");
}

#[tokio::test]
async fn a_slice_behind_a_whole_cache_of_bytes_waits_for_an_answer() {
    let node = node(2, Setup::default()).await;
    let mut peer = raw_peer(&node, 8).await;
    let (_, region) = node.region(64, Access::READ);
    let (large, small) = (patterned(BYTES_ON_MACHINE_MAX as usize, 9), patterned(100, 3));
    let first = node.write(large.whole(), &region, 0);
    let second = node.write(small.whole(), &region, 1);
    let frame = RawFrame::receive(&mut peer).await;
    receive_bytes(&mut peer, large.len()).await;
    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    assert!(peer.try_read(&mut [0; 1]).is_err(), "as many bytes are out as may be");
    peer.write_all(&RawFrame::done(frame.tag, 0).encode()).await.unwrap();
    assert_eq!(node.sink.ended(1).await, [Completion::done(first)]);
    let frame = RawFrame::receive(&mut peer).await;
    receive_bytes(&mut peer, small.len()).await;
    peer.write_all(&RawFrame::done(frame.tag, 0).encode()).await.unwrap();
    assert_eq!(node.sink.ended(1).await, [Completion::done(second)]);
}
