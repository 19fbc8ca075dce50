//! Random slices against a model of the peer's memory.

use crate::support::*;
use handfast_transport::{Access, Completion, CompletionStatus, Memory, SliceId};
use handfast_transport_tcp::Net;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::collections::BTreeMap;

/// Slices in flight; each moves bytes in a separate stripe, so their order does not matter.
const STRIPES: usize = 32;
const STRIPE_BYTES: usize = 320 << 10;

/// A slice that has not ended.
struct Flight {
    stripe: usize,
    /// Expected bytes of a read, and their offset in `local`.
    expected: Option<(usize, Vec<u8>)>,
}

struct Story<'a, N: Net> {
    a: &'a Node<N>,
    region: handfast_transport::Region,
    random: ChaCha8Rng,
    model: Vec<u8>,
    local: Memory,
    flights: BTreeMap<SliceId, Flight>,
    moved: usize,
}

impl<N: Net> Story<'_, N> {
    fn below(&mut self, limit: usize) -> usize {
        (self.random.next_u64() % limit as u64) as usize
    }

    /// Posts a slice of a random size, direction and place in `stripe`.
    fn start(&mut self, stripe: usize) {
        let size_bits = 1 + self.below(18);
        let size = self.below(1 << size_bits) + self.below(2);
        let offset = stripe * STRIPE_BYTES + self.below(STRIPE_BYTES - size);
        let here = stripe * STRIPE_BYTES + self.below(STRIPE_BYTES - size);
        let span = self.local.span(here, size).unwrap();
        let write = self.below(2) == 0;
        let (slice, expected) = if write {
            let mut bytes = vec![0; size];
            self.random.fill_bytes(&mut bytes);
            span.copy_in(0, &bytes).unwrap();
            self.model[offset..offset + size].copy_from_slice(&bytes);
            (self.a.write(span, &self.region, offset as u64), None)
        } else {
            let bytes = self.model[offset..offset + size].to_vec();
            (self.a.read(span, &self.region, offset as u64), Some((here, bytes)))
        };
        self.moved += size;
        self.flights.insert(slice, Flight { stripe, expected });
    }

    fn end(&mut self, completion: &Completion) -> usize {
        assert_eq!(completion.status, CompletionStatus::Done, "{completion:?}");
        let flight = self.flights.remove(&completion.slice).expect("it ends once");
        if let Some((here, bytes)) = flight.expected {
            let mut found = vec![0; bytes.len()];
            self.local.copy_out(here, &mut found).unwrap();
            assert!(found == bytes, "a read of {} bytes", bytes.len());
        }
        flight.stripe
    }
}

async fn agrees<N: Net>(a: &Node<N>, b: &Node<N>, seed: u64, bytes: usize) {
    let (target, region) = b.region(STRIPES * STRIPE_BYTES, Access::READ_WRITE);
    let mut story = Story {
        a,
        region,
        random: ChaCha8Rng::seed_from_u64(seed),
        model: vec![0; STRIPES * STRIPE_BYTES],
        local: Memory::zeroed(STRIPES * STRIPE_BYTES).unwrap(),
        flights: BTreeMap::new(),
        moved: 0,
    };
    (0..STRIPES).for_each(|stripe| story.start(stripe));
    while !story.flights.is_empty() {
        for completion in a.sink.ended(1).await {
            let stripe = story.end(&completion);
            if story.moved < bytes {
                story.start(stripe);
            }
        }
    }
    assert!(bytes_of(&target) == story.model);
    assert_eq!(a.sink.failures() + b.sink.failures(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_mebibytes_over_sockets() {
    let (a, b) = two_nodes(Setup::default()).await;
    tokio::join!(agrees(&a, &b, 1, 120 << 20), agrees(&b, &a, 2, 80 << 20));
}

#[tokio::test]
async fn some_over_sockets_on_one_thread() {
    let (a, b) = two_nodes(Setup::depth(STRIPES as u32)).await;
    tokio::join!(agrees(&a, &b, 3, 20 << 20), agrees(&b, &a, 4, 20 << 20));
}

#[tokio::test]
async fn some_over_pipes_of_awkward_sizes() {
    for (seed, capacity) in [(5, 33), (6, 4096), (7, 1 << 20)] {
        let net = PipeNet::new(capacity);
        let a = node_at(net.clone(), "a:0", 1, Setup::default()).await;
        let b = node_at(net, "b:0", 2, Setup::default()).await;
        wire(&a, &b).await;
        let bytes = if capacity < 100 { 1 << 20 } else { 20 << 20 };
        tokio::join!(agrees(&a, &b, seed, bytes), agrees(&b, &a, seed + 10, bytes));
    }
}
