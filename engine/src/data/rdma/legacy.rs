//! Lanes to Mooncake nodes, and the attributes that their handshake omits (rule H13).

use super::lanes::Choice;
use handfast_core::transport::{Side, TransportError};
use handfast_core::wire::Body;
use handfast_core::{Lifecycle, NicPath, Pair};
use handfast_transport::{Attempt, Endpoints, NotCreated};
use handfast_transport_tcp::Net;

/// First packet sequence number of both sides, since Mooncake announces none.
const PSN: u32 = 0;
/// Largest path MTU of a Mooncake node, in bytes (`MC_MTU`). It takes the smaller of this and its
/// port's, as we do: two ports with different MTUs cannot be connected.
const MTU_BYTES: u32 = 4096;
/// Outstanding reads of a Mooncake node's queue pairs, both ways.
const RD_ATOMIC: u32 = 16;

impl<N: Net> Choice<N> {
    /// Creates queue pairs without a TCP slot, at the descriptor's address, since older releases look it
    /// up there.
    pub(super) async fn create_legacy(
        &self,
        lifecycle: Lifecycle,
        peer: NicPath,
        attempt: Attempt,
    ) -> Result<Body, NotCreated> {
        self.policy.watch.add(lifecycle, peer.clone(), true);
        let refused = match self.rdma.create_legacy(lifecycle, peer, PSN).await {
            Ok(body) => return Ok(body),
            Err(refused) => refused,
        };
        if refused.limit.is_some() && attempt == Attempt::First {
            self.forget(lifecycle).await?;
        }
        Err(refused)
    }

    /// Connects to the queue pairs of a Mooncake node, with its default attributes.
    pub(super) async fn connect_legacy(
        &self,
        local: Pair,
        remote: Pair,
        body: Body,
    ) -> Result<(), TransportError> {
        let pairs = self.rdma.queue_pairs_per_lane(local.lifecycle);
        self.rdma.connect(local, remote, complete(body, pairs)?).await
    }
}

/// Completes a Mooncake node's announcement with its defaults; this side has `own` queue pairs, and
/// both must have equally many.
fn complete(body: Body, own: usize) -> Result<Body, TransportError> {
    let pairs = body.queue_pairs.len();
    if pairs != own {
        let detail = format!(
            "the Mooncake node has {pairs} queue pairs for each peer, and this one {own}: run it \
             with MC_NUM_QP_PER_EP={own}, or this one with {pairs}"
        );
        return Err(TransportError::new(Side::Configuration, "wire", detail));
    }
    Ok(Body { psns: vec![PSN; pairs], mtu: MTU_BYTES, rd_atomic: RD_ATOMIC, ..body })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announced(queue_pairs: &[u32]) -> Body {
        Body { queue_pairs: queue_pairs.to_vec(), gid: "fe:01".to_owned(), ..Body::default() }
    }

    /// Attributes that a Mooncake node omits get the values it configures.
    #[test]
    fn omitted_attributes_get_mooncake_defaults() {
        let body = complete(announced(&[17, 18]), 2).unwrap();
        assert_eq!((body.psns, body.mtu, body.rd_atomic), (vec![0, 0], 4096, 16));
        assert_eq!((body.queue_pairs, &*body.gid), (vec![17, 18], "fe:01"));
    }

    /// Another number of queue pairs is refused, and the error says how to configure that node.
    #[test]
    fn wrong_queue_pair_count_names_the_cure() {
        for queue_pairs in [&[17][..], &[17, 18, 19]] {
            let error = complete(announced(queue_pairs), 2).unwrap_err();
            assert_eq!((error.side, &*error.call), (Side::Configuration, "wire"));
            assert!(error.detail.contains("MC_NUM_QP_PER_EP=2"), "{error}");
        }
    }
}
