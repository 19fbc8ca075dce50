//! Queue pairs that the kernel's connection manager connects, whichever steps the driver's table
//! has for applications.

use super::fabric::Fabric;
use super::objects::Bond;
use super::states::QpState;

/// Timeout, unless the program sets one, and retries of a receiver that is not ready.
const TIMEOUT: u8 = 14;
const RETRIES: u8 = 7;

/// Settings of a connection by its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManagedSettings {
    /// Outstanding reads of the queue pair.
    pub reads: u8,
    /// Outstanding reads of the peer.
    pub peer_reads: u8,
    /// Exponent of the timeout; `None` for the connection manager's own.
    pub timeout: Option<u8>,
    /// Retries after the timeout.
    pub retries: u8,
    /// First sequence number of the queue pair and of the peer: the connection manager draws them, and
    /// each stream of iWARP has its own.
    pub psns: (u32, u32),
}

impl Fabric {
    /// Connects a queue pair to a peer's. Returns whether the queue pair exists and was neither connected
    /// nor in error.
    pub fn connect_managed(
        &mut self,
        nic: usize,
        number: u32,
        peer: (usize, u32),
        settings: ManagedSettings,
    ) -> bool {
        let mtu = self.nic(nic).active_mtu();
        let Some(qp) = self.queue_pair_mut(nic, number) else { return false };
        if qp.bond.is_some() || qp.state == QpState::Err {
            return false;
        }
        (qp.state, qp.asked) = (QpState::Rts, QpState::Rts);
        qp.port = Some(1);
        qp.bond = Some(Bond { host: peer.0 as u16, number: peer.1 });
        (qp.next_psn, qp.expected_psn) = settings.psns;
        qp.path_mtu = mtu;
        (qp.max_rd_atomic, qp.max_dest_rd_atomic) = (settings.reads, settings.peer_reads);
        (qp.timeout, qp.rnr_retry) = (settings.timeout.unwrap_or(TIMEOUT), RETRIES);
        qp.retry_count = settings.retries.min(RETRIES);
        true
    }

    /// Moves a queue pair to ERR, since its connection has ended and not because the program asks for it.
    pub fn stop_managed(&mut self, nic: usize, number: u32) {
        self.fail_queue_pair(nic, number, None);
    }
}
