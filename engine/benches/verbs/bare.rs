//! A bare loop of posts and polls: two connected queue pairs, and what a program has to call.

use crate::{BLOCK, memory};
use handfast_transport_rdma::{
    BareAddress, BareAttributes, BareChain, BareKind, BareNic, BareQueuePair, BareRegion,
    BareRequest, BareRights, VerbsError,
};

/// States in rdma-core's numbers.
const INIT: u32 = 1;
const RTR: u32 = 2;
const RTS: u32 = 3;
const DEPTH: u32 = 128;
const ALL: BareRights = BareRights { local_write: true, remote_read: true, remote_write: true };

/// Writes of a block from one device to another.
pub(crate) struct BareLoop {
    own: Site,
    /// Batches of different bytes, posted in turn.
    chains: Vec<BareChain>,
    next: usize,
    requests: usize,
    _peer: Site,
}

struct Site {
    nic: BareNic,
    pair: BareQueuePair,
    region: BareRegion,
}

impl Site {
    fn open(device: &str, blocks: usize) -> Result<Self, VerbsError> {
        let nic = BareNic::open(device, 2 * DEPTH)?;
        let pair = nic.queue_pair(DEPTH, 1)?;
        let region = nic.register(memory(blocks).whole(), ALL)?;
        Ok(Self { nic, pair, region })
    }

    fn connect(&self, peer: &Self) {
        let gid = |site: &Self| site.nic.gids().expect("addresses")[0];
        let address = BareAddress {
            port: 1,
            own_gid_index: gid(self).index as u8,
            peer_gid: gid(peer).address,
            peer_lid: 0,
            is_global: true,
        };
        let plain = BareAttributes::default();
        let steps = [
            BareAttributes {
                state: INIT,
                pkey_index: Some(0),
                port: Some(1),
                rights: Some(ALL),
                ..plain
            },
            BareAttributes {
                state: RTR,
                address: Some(address),
                path_mtu: Some(1_024),
                peer_number: Some(peer.pair.number()),
                receive_psn: Some(0),
                max_dest_rd_atomic: Some(1),
                min_rnr_timer: Some(12),
                ..plain
            },
            BareAttributes {
                state: RTS,
                timeout: Some(14),
                retries: Some(6),
                rnr_retries: Some(6),
                send_psn: Some(0),
                max_rd_atomic: Some(1),
                ..plain
            },
        ];
        for step in steps {
            assert_eq!(self.pair.modify(&step), 0, "{step:?}");
        }
    }
}

impl BareLoop {
    /// Batches of `requests` writes, `batches` of them before the first bytes come again.
    pub(crate) fn new(
        own: &str,
        peer: &str,
        requests: usize,
        batches: usize,
    ) -> Result<Self, VerbsError> {
        let open = |device| Site::open(device, requests * batches);
        let (own, peer) = (open(own)?, open(peer)?);
        own.connect(&peer);
        peer.connect(&own);
        let request = |number: usize| BareRequest {
            name: number as u64,
            kind: BareKind::Write,
            address: own.region.span().address() + (number * BLOCK) as u64,
            length: BLOCK as u32,
            local_key: own.region.keys().0,
            remote_address: peer.region.span().address() + (number * BLOCK) as u64,
            remote_key: peer.region.keys().1,
            signalled: true,
        };
        let all: Vec<BareRequest> = (0..requests * batches).map(request).collect();
        let chains = all.chunks(requests).map(BareChain::writes).collect();
        Ok(Self { own, chains, next: 0, requests, _peer: peer })
    }

    /// Posts every request with one call, and polls until all have completed.
    pub(crate) fn batch(&mut self) {
        let chain = &mut self.chains[self.next];
        self.own.pair.post_chain(chain).expect("a post");
        self.next = (self.next + 1) % self.chains.len();
        let mut left = self.requests;
        while left > 0 {
            left -= self.own.nic.take_successes().expect("completions");
        }
    }
}
