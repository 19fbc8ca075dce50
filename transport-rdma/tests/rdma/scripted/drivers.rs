//! Offers and refusals of drivers, on scripted devices.

use super::{on, sites};
use crate::support::{LANE, Recorder, Site, config, connect_lane, pattern};
use handfast_core::Lifecycle;
use handfast_core::transport::Side;
use handfast_transport::{Access, CompletionStatus, Direction, Memory};
use handfast_transport_rdma::{DeviceEvent, Nic, NicConfig, RegisterOptions};
use std::sync::Arc;

/// `errno` of an object in use, and of an address in use.
const EBUSY: i32 = 16;
const EACCES: i32 = 13;
const EADDRINUSE: i32 = 98;

/// A driver that refuses relaxed ordering registers without it, and is asked for it once. The memory is
/// written like any other.
#[test]
fn refused_relaxed_ordering_is_asked_for_once() {
    let name = "drivers::refused_relaxed_ordering_is_asked_for_once";
    on(&["mlx5:refuses_relaxed_ordering", "mlx5"], name, |fabric| {
        let refuses = std::env::var("HANDFAST_FABRIC").unwrap().contains("refuses");
        let (one, other) = sites();
        connect_lane(&one, &other, LANE, 1);
        let count = || fabric.run("count rxe1 ibv_reg_mr").parse::<u64>().unwrap();
        let memory = Memory::zeroed(4_096).unwrap();
        let relaxed = RegisterOptions { relaxed_ordering: true, ..Default::default() };
        let register = || other.nic.register_with(memory.whole(), Access::READ_WRITE, relaxed);
        let before = count();
        let registered = register().unwrap();
        assert_eq!(count() - before, if refuses { 2 } else { 1 });
        drop(register().unwrap());
        assert_eq!(count() - before, if refuses { 3 } else { 2 });
        one.memory.copy_in(0, &pattern(9)).unwrap();
        let mut posting = one.posting(&other, 1, Direction::Write, 0, 4_096);
        posting.remote = registered.remote_span();
        one.nic.post(LANE, &mut vec![posting]);
        assert_eq!(one.told.ends(1), [CompletionStatus::Done]);
        let mut bytes = [0; 4_096];
        memory.copy_out(0, &mut bytes).unwrap();
        assert!(bytes == pattern(9)[..4_096]);
    });
}

/// A refusal of anything else is none of the ordering: the next registration asks for it again.
#[test]
fn other_refusal_leaves_relaxed_ordering_on() {
    on(&["mlx5"], "drivers::other_refusal_leaves_relaxed_ordering_on", |fabric| {
        let site = Site::new(config("rxe0"));
        let memory = Memory::zeroed(4_096).unwrap();
        let relaxed = RegisterOptions { relaxed_ordering: true, ..Default::default() };
        let register = || site.nic.register_with(memory.whole(), Access::READ_WRITE, relaxed);
        fabric.run(&format!("fail call rxe0 ibv_reg_mr {} times 1", libc::ENOMEM));
        drop(register().unwrap());
        fabric.run(&format!("fail call rxe0 ibv_reg_mr {} times 1", libc::ENOMEM));
        assert!(register().is_ok(), "the second call registers, without the ordering");
    });
}

/// The completion queues of the pollers are on as many completion vectors, as far as the device has
/// them: 4.
#[test]
fn pollers_are_spread_over_completion_vectors() {
    on(&["mlx5", "irdma"], "drivers::pollers_are_spread_over_completion_vectors", |fabric| {
        let one = Site::new(NicConfig { pollers: 6, ..config("rxe0") });
        let other = Site::new(config("rxe1"));
        for lane in 0..6 {
            connect_lane(&one, &other, Lifecycle(lane), 1);
        }
        let vectors = |device| -> Vec<String> {
            fabric.run(&format!("vectors {device}")).lines().map(str::to_owned).collect()
        };
        assert_eq!(vectors("rxe0"), ["0", "1", "2", "3", "0", "1"]);
        assert_eq!(vectors("rxe1"), ["0"]);
    });
}

/// A NIC is a port of a device: it has the addresses and the events of its port alone, and works on while
/// the other port is down. A port that the device lacks is refused.
#[test]
fn ports_of_a_device_are_apart() {
    on(&["mlx5:ports=2", "irdma:ports=2"], "drivers::ports_of_a_device_are_apart", |fabric| {
        let first = Site::new(config("rxe0"));
        let second = Site::new(NicConfig { port: 2, ..config("rxe0") });
        let peer = Site::new(NicConfig { port: 2, ..config("rxe1") });
        assert_ne!(first.nic.gid().entry.address, second.nic.gid().entry.address);
        connect_lane(&second, &peer, LANE, 2);
        fabric.run("port rxe0 down");
        let down = |port| DeviceEvent::PortDown { port };
        first.told.wait("the end of its port", |told| told.events.contains(&down(1)));
        second.memory.copy_in(0, &pattern(3)).unwrap();
        second.post_all(&peer, Direction::Write, 8);
        assert!(second.told.ends(8).iter().all(|end| *end == CompletionStatus::Done));
        assert_eq!(peer.bytes(), pattern(3));
        assert_eq!(fabric.run("packets rxe1"), "0", "its other port");
        fabric.run("port rxe0:2 down");
        second.told.wait("the end of its port", |told| told.events.contains(&down(2)));
        second.told.wait("one event alone", |told| !told.events.contains(&down(1)));
        let error = Nic::open(NicConfig { port: 3, ..config("rxe1") }, Arc::<Recorder>::default());
        assert_eq!(error.err().expect("a refusal").call, "ibv_query_port");
        second.nic.retire(LANE).unwrap();
        peer.nic.retire(LANE).unwrap();
    });
}

/// A queue pair and a completion queue that the device did not destroy are tried again, but by drivers that have
/// unmapped their queues by then: a second call would unmap what another has there. The lane of such a queue pair
/// ends without one.
#[test]
fn failed_destruction_is_repeated_where_it_changed_nothing() {
    let name = "drivers::failed_destruction_is_repeated_where_it_changed_nothing";
    on(&["mlx5", "erdma-standard", "siw", "irdma"], name, |fabric| {
        let (one, other) = sites();
        let is_once = one.nic.recognised().profile.destroys_once;
        assert_eq!(is_once, ["siw", "irdma"].contains(&one.nic.recognised().profile.name));
        let count = |call: &str| fabric.run(&format!("count rxe0 {call}")).parse::<u64>().unwrap();
        connect_lane(&one, &other, LANE, 1);
        fabric.run(&format!("fail call rxe0 ibv_destroy_qp {EBUSY} times 1"));
        let before = count("ibv_destroy_qp");
        assert_eq!(one.nic.retire(LANE).is_ok(), is_once);
        one.nic.retire(LANE).unwrap();
        let again = u64::from(!is_once);
        assert_eq!(count("ibv_destroy_qp") - before, 1 + again);
        other.nic.retire(LANE).unwrap();
        // A device with nothing left of a lane: the other one.
        let queues: u64 = fabric.run("queues rxe1").parse().unwrap();
        fabric.run(&format!("fail call rxe1 ibv_destroy_cq {EBUSY} times 1"));
        drop(other);
        let destroyed = fabric.run("count rxe1 ibv_destroy_cq");
        assert_eq!(destroyed.parse::<u64>().unwrap(), queues + again);
    });
}

/// A NIC that cannot listen names the call, the value of errno and the cure, whichever call of the connection manager
/// refuses.
#[test]
fn refused_listener_has_its_cause() {
    on(&["siw", "erdma-standard"], "drivers::refused_listener_has_its_cause", |fabric| {
        let open = |device| Nic::open(config(device), Arc::new(Recorder::default()));
        fabric.run("manager ports rxe0 20000 20000");
        let _one = open("rxe0").unwrap();
        let error = open("rxe1").err().unwrap();
        assert_eq!((error.side, error.call), (Side::Configuration, "rdma_bind_addr"), "{error}");
        assert_ne!(error.code, 0, "{error}");
        for part in ["does not bind 10.0.0.2", "name an address of its network interface"] {
            assert!(error.detail.contains(part), "{error}");
        }
        fabric.run("manager ports rxe0 20000 20010");
        // A port that TCP has is another program's: the next one is tried.
        fabric.run(&format!("fail call rxe1 rdma_listen {EADDRINUSE} times 1"));
        drop(open("rxe1").unwrap());
        fabric.run(&format!("fail call rxe1 rdma_listen {EACCES} times 1"));
        let error = open("rxe1").err().unwrap();
        assert_eq!((error.call, error.code), ("rdma_listen", EACCES), "{error}");
        assert!(error.detail.contains("does not listen at 10.0.0.2:"), "{error}");
        assert!(open("rxe1").is_ok());
    });
}
