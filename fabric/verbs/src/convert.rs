//! Values of the structures and of messages.

use crate::abi::QpAttr;
use handfast_fabric::protocol::{PairAttributes, mask};

pub(crate) fn mtu_number(bytes: u32) -> u32 {
    bytes.ilog2() - 7
}

/// Bits of a mask that devices here know.
pub(crate) const KNOWN_ATTRIBUTES: u32 = mask::STATE
    | mask::CUR_STATE
    | mask::PKEY_INDEX
    | mask::PORT
    | mask::ACCESS_FLAGS
    | mask::AV
    | mask::PATH_MTU
    | mask::DEST_QPN
    | mask::RQ_PSN
    | mask::MAX_DEST_RD_ATOMIC
    | mask::MIN_RNR_TIMER
    | mask::TIMEOUT
    | mask::RETRY_CNT
    | mask::RNR_RETRY
    | mask::SQ_PSN
    | mask::MAX_QP_RD_ATOMIC;

/// Attributes as a message has them.
pub(crate) fn pair_attributes(given: &QpAttr) -> PairAttributes {
    PairAttributes {
        state: given.qp_state,
        path_mtu: given.path_mtu,
        rq_psn: given.rq_psn,
        sq_psn: given.sq_psn,
        dest_number: given.dest_qp_num,
        access_flags: given.qp_access_flags,
        pkey_index: given.pkey_index,
        max_rd_atomic: given.max_rd_atomic,
        max_dest_rd_atomic: given.max_dest_rd_atomic,
        min_rnr_timer: given.min_rnr_timer,
        port: given.port_num,
        timeout: given.timeout,
        retry_count: given.retry_cnt,
        rnr_retry: given.rnr_retry,
        gid: raw_gid(given.ah_attr.dgid),
        gid_index: given.ah_attr.sgid_index,
        lid: given.ah_attr.dlid,
        is_global: given.ah_attr.is_global != 0,
        path_port: given.ah_attr.port_num,
    }
}

/// The bytes of an address, as the structures hold them.
fn raw_gid(gid: [u64; 2]) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&gid[0].to_ne_bytes());
    bytes[8..].copy_from_slice(&gid[1].to_ne_bytes());
    bytes
}

/// The inverse of [`raw_gid`].
pub(crate) fn structured_gid(bytes: [u8; 16]) -> [u64; 2] {
    let half = |at: usize| {
        let mut half = [0; 8];
        half.copy_from_slice(&bytes[at..at + 8]);
        u64::from_ne_bytes(half)
    };
    [half(0), half(8)]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An address comes back from the structure's form.
    #[test]
    fn address_comes_back_from_its_structure() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
        assert_eq!(raw_gid(structured_gid(bytes)), bytes);
        assert_eq!([256, 1_024, 4_096].map(mtu_number), [1, 3, 5]);
    }
}
