//! Attributes of `ibv_modify_qp`, and those that each step requires.

use super::objects::Gid;
use super::states::QpState;

/// Permissions of a queue pair or of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Access {
    /// The local NIC may write.
    pub local_write: bool,
    /// The peer may read.
    pub remote_read: bool,
    /// The peer may write.
    pub remote_write: bool,
}

impl Access {
    /// Everything.
    pub const ALL: Self = Self { local_write: true, remote_read: true, remote_write: true };
    /// Local use only.
    pub const LOCAL: Self = Self { local_write: true, remote_read: false, remote_write: false };
}

/// Address of a queue pair's peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressVector {
    /// The port, counted from 1.
    pub port: u8,
    /// Index of the local GID.
    pub sgid_index: u8,
    /// The peer's GID.
    pub dgid: Gid,
    /// Whether packets have a global header, as always on RoCE.
    pub is_global: bool,
}

/// The attributes of one modify. Those that are `Some` have their bit in the mask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The requested state.
    pub state: QpState,
    /// INIT: the partition key's index.
    pub pkey_index: Option<u16>,
    /// INIT: the port.
    pub port: Option<u8>,
    /// INIT: permissions of the peer.
    pub access: Option<Access>,
    /// RTR: address of the peer.
    pub address: Option<AddressVector>,
    /// RTR: payload bytes of a packet.
    pub path_mtu: Option<u32>,
    /// RTR: the peer's queue-pair number.
    pub dest_number: Option<u32>,
    /// RTR: the first expected PSN.
    pub rq_psn: Option<u32>,
    /// RTR: maximum outstanding reads of the peer.
    pub max_dest_rd_atomic: Option<u8>,
    /// RTR: code of the pause requested if no receive is posted.
    pub min_rnr_timer: Option<u8>,
    /// RTS: code of the time before a packet is retransmitted.
    pub timeout: Option<u8>,
    /// RTS: number of retransmissions of a packet.
    pub retry_count: Option<u8>,
    /// RTS: number of retries of a send to a receiver that is not ready; 7 is unlimited.
    pub rnr_retry: Option<u8>,
    /// RTS: the first PSN to send.
    pub sq_psn: Option<u32>,
    /// RTS: maximum own reads outstanding.
    pub max_rd_atomic: Option<u8>,
}

const PKEY: u16 = 1;
const PORT: u16 = 1 << 1;
const ACCESS: u16 = 1 << 2;
const ADDRESS: u16 = 1 << 3;
const MTU: u16 = 1 << 4;
const DEST: u16 = 1 << 5;
const RQ_PSN: u16 = 1 << 6;
const MAX_DEST: u16 = 1 << 7;
const RNR_TIMER: u16 = 1 << 8;
const TIMEOUT: u16 = 1 << 9;
const RETRY: u16 = 1 << 10;
const RNR_RETRY: u16 = 1 << 11;
const SQ_PSN: u16 = 1 << 12;
const MAX_RD: u16 = 1 << 13;

impl Attributes {
    /// Only a state.
    pub fn to(state: QpState) -> Self {
        Self { state, ..Self::default() }
    }

    /// INIT with every required attribute, on port 1.
    pub fn to_init(access: Access) -> Self {
        Self { pkey_index: Some(0), port: Some(1), access: Some(access), ..Self::to(QpState::Init) }
    }

    /// RTR with every required attribute: a path MTU of 1,024 bytes and 16 reads.
    pub fn to_rtr(sgid_index: u8, dgid: Gid, dest_number: u32, rq_psn: u32) -> Self {
        Self {
            address: Some(AddressVector { port: 1, sgid_index, dgid, is_global: true }),
            path_mtu: Some(1_024),
            dest_number: Some(dest_number),
            rq_psn: Some(rq_psn),
            max_dest_rd_atomic: Some(16),
            min_rnr_timer: Some(12),
            ..Self::to(QpState::Rtr)
        }
    }

    /// RTS with every required attribute: timeout 14, six retries for silence and two for receivers
    /// that are not ready, 16 reads.
    pub fn to_rts(sq_psn: u32) -> Self {
        Self {
            timeout: Some(14),
            retry_count: Some(6),
            rnr_retry: Some(2),
            sq_psn: Some(sq_psn),
            max_rd_atomic: Some(16),
            ..Self::to(QpState::Rts)
        }
    }

    pub(super) fn mask(&self) -> u16 {
        let bit = |given: bool, bit: u16| if given { bit } else { 0 };
        bit(self.pkey_index.is_some(), PKEY)
            | bit(self.port.is_some(), PORT)
            | bit(self.access.is_some(), ACCESS)
            | bit(self.address.is_some(), ADDRESS)
            | bit(self.path_mtu.is_some(), MTU)
            | bit(self.dest_number.is_some(), DEST)
            | bit(self.rq_psn.is_some(), RQ_PSN)
            | bit(self.max_dest_rd_atomic.is_some(), MAX_DEST)
            | bit(self.min_rnr_timer.is_some(), RNR_TIMER)
            | bit(self.timeout.is_some(), TIMEOUT)
            | bit(self.retry_count.is_some(), RETRY)
            | bit(self.rnr_retry.is_some(), RNR_RETRY)
            | bit(self.sq_psn.is_some(), SQ_PSN)
            | bit(self.max_rd_atomic.is_some(), MAX_RD)
    }

    /// Whether the step from `from` has every required attribute and no forbidden one, by the
    /// kernel's table for reliable connections. Alternate paths are not modelled.
    pub(super) fn fit(&self, from: QpState) -> bool {
        let (required, optional) = match (from, self.state) {
            (QpState::Reset, QpState::Init) => (PKEY | PORT | ACCESS, 0),
            (QpState::Init, QpState::Init) => (0, PKEY | PORT | ACCESS),
            (QpState::Init, QpState::Rtr) => {
                (ADDRESS | MTU | DEST | RQ_PSN | MAX_DEST | RNR_TIMER, ACCESS | PKEY)
            }
            (QpState::Rtr, QpState::Rts) => {
                (TIMEOUT | RETRY | RNR_RETRY | SQ_PSN | MAX_RD, ACCESS | RNR_TIMER)
            }
            (QpState::Rts | QpState::Sqd, QpState::Rts) => (0, ACCESS | RNR_TIMER),
            (QpState::Sqd, QpState::Sqd) => {
                let timers = TIMEOUT | RETRY | RNR_RETRY | RNR_TIMER;
                (0, PORT | ADDRESS | timers | MAX_RD | MAX_DEST | ACCESS | PKEY)
            }
            _ => (0, 0),
        };
        let given = self.mask();
        given & required == required && given & !(required | optional) == 0
    }
}
