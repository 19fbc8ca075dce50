//! Slices that succeed, slices that are refused, and how many there may be.

use crate::support::*;
use handfast_core::transport::Side;
use handfast_transport::{
    Access, Completion, CompletionStatus, DataPath, Memory, Posting, Region, RemoteSpan, Sent,
    SliceId,
};
use handfast_transport_tcp::{Net, SLICE_BYTES_MAX};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slices_of_every_size_arrive() {
    let (a, b) = two_nodes(Setup::default()).await;
    let (target, region) = b.region(SLICE_BYTES_MAX, Access::READ_WRITE);
    for size in [0, 1, 31, 32, 33, 4096, 32_767, 32_768, 262_143, 262_144, 262_145, SLICE_BYTES_MAX]
    {
        let source = patterned(size.max(1), size as u8 | 1);
        let back = Memory::zeroed(size.max(1)).unwrap();
        let slice = a.write(source.span(0, size).unwrap(), &region, 0);
        assert_eq!(a.sink.ended(1).await, [Completion::done(slice)], "{size}");
        let slice = a.read(back.span(0, size).unwrap(), &region, 0);
        assert_eq!(a.sink.ended(1).await, [Completion::done(slice)], "{size}");
        assert_eq!(bytes_of(&back)[..size], bytes_of(&source)[..size], "{size}");
        assert_eq!(bytes_of(&target)[..size], bytes_of(&source)[..size], "{size}");
    }
    assert_eq!(a.sink.failures() + b.sink.failures(), 0);
}

/// Each refusal, and that the lane goes on after it.
async fn refuses<N: Net>(a: &Node<N>, b: &Node<N>) {
    let (target, both) = b.region(100_000, Access::READ_WRITE);
    let (_, read_only) = b.region(100_000, Access::READ);
    let (_, write_only) = b.region(100_000, Access::WRITE);
    let (unknown, gone) = b.region(100_000, Access::READ_WRITE);
    b.regions.unregister(gone.key());
    drop(unknown);
    let local = patterned(90_000, 5);
    let cases: [(bool, &Region, u64, i32); 8] = [
        (true, &gone, 0, 1),
        (true, &both, 10_001, 2),
        (true, &both, u64::MAX - both.address(), 2),
        (true, &read_only, 0, 3),
        (false, &gone, 0, 1),
        (false, &both, 10_001, 2),
        (false, &both, u64::MAX - both.address(), 2),
        (false, &write_only, 0, 3),
    ];
    for (number, (write, region, offset, code)) in cases.into_iter().enumerate() {
        let post = if write { Node::write } else { Node::read };
        let slice = post(a, local.whole(), region, offset);
        let ended = a.sink.ended(1).await;
        let [Completion { slice: refused, status: CompletionStatus::Refused(error) }] =
            ended.as_slice()
        else {
            panic!("case {number} ended as {ended:?}");
        };
        assert_eq!((*refused, error.code, error.side), (slice, code, Side::Peer), "{number}");
        assert_eq!(error.call, if write { "write" } else { "read" });
    }
    assert_eq!(bytes_of(&target), [0; 100_000], "a refused write leaves nothing");
    assert_eq!(bytes_of(&local), bytes_of(&patterned(90_000, 5)), "nor does a refused read");
    let slice = a.write(local.whole(), &both, 10_000);
    assert_eq!(a.sink.ended(1).await, [Completion::done(slice)]);
    assert_eq!(bytes_of(&target)[10_000..], bytes_of(&local));
    assert_eq!(a.sink.failures() + b.sink.failures(), 0);
}

#[tokio::test]
async fn what_the_peer_does_not_allow_is_refused_and_the_lane_goes_on() {
    let (a, b) = two_nodes(Setup::default()).await;
    refuses(&a, &b).await;
    refuses(&b, &a).await;
    let net = PipeNet::new(1000);
    let a = node_at(net.clone(), "a:0", 1, Setup::default()).await;
    let b = node_at(net, "b:0", 2, Setup::default()).await;
    wire(&a, &b).await;
    refuses(&a, &b).await;
}

#[tokio::test]
async fn what_can_never_be_sent_is_refused_at_once() {
    let (a, b) = two_nodes(Setup::default()).await;
    let (_, region) = b.region(SLICE_BYTES_MAX + 1, Access::READ_WRITE);
    let large = Memory::zeroed(SLICE_BYTES_MAX + 1).unwrap();
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let fixed = Memory::map_file(&file, false, 4096).unwrap();
    let slices = [a.write(large.whole(), &region, 0), a.read(fixed.whole(), &region, 0)];
    for (ended, slice) in a.sink.ended_now().iter().zip(slices) {
        assert!(
            matches!(&ended.status, CompletionStatus::Refused(error)
                if ended.slice == slice && error.side == Side::Local && error.call == "post"),
            "{ended:?}"
        );
    }
    let slice = a.write(fixed.whole(), &region, 0);
    assert_eq!(a.sink.ended(1).await, [Completion::done(slice)], "it may be read from");
}

#[tokio::test]
async fn a_full_lane_gives_back_what_it_cannot_hold() {
    let node = node(2, Setup::depth(4)).await;
    let _mute = raw_peer(&node, 100).await;
    assert_eq!(node.transport.depth(LANE), Some(4));
    let memory = patterned(10, 1);
    let remote = RemoteSpan { key: 1, address: 2 };
    let posting = |slice| Posting {
        slice: SliceId::from_bits(slice),
        direction: handfast_transport::Direction::Write,
        span: memory.whole(),
        remote,
        memory: None,
        region_key: None,
    };
    let mut postings: Vec<_> = (0..6).map(posting).collect();
    node.transport.post(LANE, &mut postings);
    let back = [4, 5].map(|slice| Completion::released(SliceId::from_bits(slice), Sent::None));
    assert_eq!(node.sink.ended_now(), back);
    node.retire().await;
    let ended = node.sink.ended_now();
    assert_eq!(ended.iter().map(|it| it.slice.to_bits()).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(memory.holders(), 1);
}

#[tokio::test]
async fn no_more_slices_are_on_the_wire_than_the_peer_agreed_to() {
    let node = node(2, Setup::depth(64)).await;
    let mut peer = raw_peer(&node, 3).await;
    assert_eq!(node.transport.depth(LANE), Some(3));
    let (_, region) = node.region(64, Access::READ);
    let memory = patterned(10, 1);
    let slices: Vec<SliceId> = (0..8).map(|_| node.write(memory.whole(), &region, 0)).collect();
    let mut tags = Vec::new();
    for _ in 0..3 {
        tags.push(RawFrame::receive(&mut peer).await.tag);
        receive_bytes(&mut peer, 10).await;
    }
    tokio::time::sleep(std::time::Duration::from_millis(30)).await;
    assert!(peer.try_read(&mut [0; 1]).is_err(), "the fourth waits");
    for (done, slice) in slices.into_iter().enumerate() {
        let answer = RawFrame::done(tags[done], 0).encode();
        tokio::io::AsyncWriteExt::write_all(&mut peer, &answer).await.unwrap();
        assert_eq!(node.sink.ended(1).await, [Completion::done(slice)]);
        if tags.len() < 8 {
            tags.push(RawFrame::receive(&mut peer).await.tag);
            receive_bytes(&mut peer, 10).await;
        }
    }
}

#[tokio::test]
async fn slices_posted_before_the_lane_is_wired_wait_for_it() {
    let (a, b) = (node(1, Setup::default()).await, node(2, Setup::default()).await);
    let ours = a.transport.create(LANE, 1).unwrap();
    let theirs = b.transport.create(LANE, 2).unwrap();
    let (target, region) = a.region(1000, Access::WRITE);
    b.transport.connect(b.pair(7), a.pair(7), ours).await.unwrap();
    let source = patterned(1000, 8);
    let slice = b.write(source.whole(), &region, 0);
    assert!(b.sink.ended_now().is_empty());
    a.transport.connect(a.pair(7), b.pair(7), theirs).await.unwrap();
    assert_eq!(b.sink.ended(1).await, [Completion::done(slice)]);
    assert_eq!(bytes_of(&target), bytes_of(&source));
}
