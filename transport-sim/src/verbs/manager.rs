//! Queue pairs that the kernel's connection manager connects, whichever steps the driver's table
//! has for applications.

use super::fabric::Fabric;
use super::objects::Bond;
use super::states::QpState;

/// Timeout and retries that the connection manager sets.
const TIMEOUT: u8 = 14;
const RETRIES: u8 = 7;

impl Fabric {
    /// Connects a queue pair to a peer's, with these numbers of outstanding reads of its own and of
    /// the peer. Returns whether the queue pair exists and was neither connected nor in error.
    pub fn connect_managed(
        &mut self,
        nic: usize,
        number: u32,
        peer: (usize, u32),
        (reads, peer_reads): (u8, u8),
    ) -> bool {
        let mtu = self.nic(nic).active_mtu();
        let Some(qp) = self.queue_pair_mut(nic, number) else { return false };
        if qp.bond.is_some() || qp.state == QpState::Err {
            return false;
        }
        (qp.state, qp.asked) = (QpState::Rts, QpState::Rts);
        qp.port = Some(1);
        qp.bond = Some(Bond { host: peer.0 as u16, number: peer.1 });
        (qp.next_psn, qp.expected_psn) = (0, 0);
        qp.path_mtu = mtu;
        (qp.max_rd_atomic, qp.max_dest_rd_atomic) = (reads, peer_reads);
        (qp.timeout, qp.retry_count, qp.rnr_retry) = (TIMEOUT, RETRIES, RETRIES);
        true
    }
}
