//! Two engines of this process, over devices of their own.

use crate::{BATCHES_APART, BLOCK, PIECES_MAX, memory};
use handfast::rdma::{Polling, RdmaOptions};
use handfast::{
    Access, Engine, EngineLimits, Prepared, Registration, Segment, Span, TransportChoice,
};
use std::collections::VecDeque;
use tokio::runtime::Runtime;

/// A user and an owner of memory.
pub(crate) struct Ends {
    segment: Segment,
    pieces: Vec<(Span, u64)>,
    _user: Engine,
    _owner: Engine,
    _served: Registration,
    _prepared: Prepared,
}

fn builder(devices: &[&str], polling: Option<Polling>) -> handfast::Builder {
    let rdma = RdmaOptions::default().with(|it| {
        it.devices = devices.iter().map(|device| (*device).to_owned()).collect();
        it.polling = polling;
    });
    Engine::builder().transport(TransportChoice::Rdma).rdma(rdma).limits(EngineLimits::default())
}

impl Ends {
    /// Starts both; the user polls as asked.
    pub(crate) fn start(
        runtime: &Runtime,
        own: &[&str],
        peers: &[&str],
        polling: Option<Polling>,
    ) -> Result<Self, handfast::Error> {
        runtime.block_on(async {
            let owner = builder(peers, Some(Polling::Event)).listen("127.0.0.1:0").start().await?;
            let blocks = PIECES_MAX * BATCHES_APART;
            let served = memory(blocks).whole();
            let _served = owner.register("m").access(Access::READ_WRITE).serve(served)?;
            let user = builder(own, polling).start().await?;
            let block = memory(blocks);
            let _prepared = user.prepare(&block.whole()).await?;
            let segment = user.open(owner.address()).await?;
            let piece = |number| Ok((block.span(number * BLOCK, BLOCK)?, (number * BLOCK) as u64));
            let pieces = (0..blocks).map(piece).collect::<Result<_, handfast::Error>>()?;
            Ok(Self { segment, pieces, _user: user, _owner: owner, _served, _prepared })
        })
    }

    /// Writes blocks in one batch, the one at this place.
    pub(crate) async fn batch(&self, place: usize, requests: usize) {
        self.submit(place, requests).await.await.expect("a batch");
    }

    /// Writes batches one after the other, of which some are in flight together.
    pub(crate) async fn stream(&self, batches: usize, in_flight: usize, requests: usize) {
        let mut transfers = VecDeque::<handfast::Transfer>::with_capacity(in_flight);
        for place in 0..batches {
            if transfers.len() == in_flight
                && let Some(oldest) = transfers.pop_front()
            {
                oldest.await.expect("a batch");
            }
            transfers.push_back(self.submit(place, requests).await);
        }
        for transfer in transfers {
            transfer.await.expect("a batch");
        }
    }

    /// Begins to write blocks in one batch.
    pub(crate) async fn submit(&self, place: usize, requests: usize) -> handfast::Transfer {
        let pieces = self.pieces.chunks(requests).nth(place).expect("few places").iter();
        let batch = pieces.fold(self.segment.batch(), |batch, (span, at)| batch.write(span, *at));
        batch.submit().await.expect("a submission")
    }
}
