//! Soft-iWARP in a guest (`cargo xtask guest --nics siw`): what it answers to a queue pair that is
//! connected out of band, which is what eRDMA answers in its standard mode.

use crate::managed::kernel_connections_equal_simulated_ones;
use handfast_transport::Memory;
use handfast_transport_rdma::{BareAddress, BareAttributes, BareNic, BareRights};

const DEVICE: &str = "siw0";
const EINVAL: i32 = 22;
const RIGHTS: BareRights = BareRights { local_write: true, remote_read: true, remote_write: true };

/// Whether the test can run here. A guest built for it must have the device.
fn can_run() -> bool {
    let available = std::env::var("HANDFAST_NICS").is_ok_and(|nics| nics == "siw");
    if !available {
        println!("skipped: it needs a guest with {DEVICE}");
    }
    available
}

/// The connection manager over soft-iWARP has the observations of the simulated one.
#[test]
fn connections_over_soft_iwarp_equal_simulated_ones() {
    if can_run() {
        kernel_connections_equal_simulated_ones("siw");
    }
}

#[test]
fn a_queue_pair_that_is_wired_out_of_band_is_refused_at_rts() {
    if !can_run() {
        return;
    }
    let nic = BareNic::open(DEVICE, 15).unwrap();
    let memory = Memory::zeroed(4096).unwrap();
    let _region = nic.register(memory.whole(), RIGHTS).unwrap();
    let pair = nic.queue_pair(15, 15).unwrap();
    let peer_gid = nic.gids().unwrap()[0].address;
    let init = BareAttributes {
        state: 1,
        pkey_index: Some(0),
        port: Some(1),
        rights: Some(RIGHTS),
        ..BareAttributes::default()
    };
    let address = BareAddress { port: 1, own_gid_index: 0, peer_gid, peer_lid: 0, is_global: true };
    let rtr = BareAttributes {
        state: 2,
        address: Some(address),
        path_mtu: Some(1024),
        peer_number: Some(pair.number()),
        receive_psn: Some(1),
        max_dest_rd_atomic: Some(16),
        min_rnr_timer: Some(12),
        ..BareAttributes::default()
    };
    let rts = BareAttributes {
        state: 3,
        timeout: Some(14),
        retries: Some(6),
        rnr_retries: Some(6),
        send_psn: Some(1),
        max_rd_atomic: Some(16),
        ..BareAttributes::default()
    };
    let answers = [init, rtr, rts].map(|step| pair.modify(&step).abs());
    println!("INIT, RTR and RTS are answered by {answers:?}");
    assert_eq!(answers, [0, 0, EINVAL]);
}
