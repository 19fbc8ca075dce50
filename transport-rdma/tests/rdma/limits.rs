//! Limits, and what is refused.

use crate::links::Link;
use crate::scripted::managed::with;
use crate::support::{LANE, Site, config, connected, unanswered};
use handfast_core::Lifecycle;
use handfast_core::transport::Side;
use handfast_core::wire::Body;
use handfast_transport::{Access, CompletionStatus, Direction, Memory, Sent};
use handfast_transport_rdma::{
    COMPLETION_QUEUES_MAX, DEPTH_MAX, LimitReached, NUMBERS_SKIPPED_MAX, Nic, NicConfig, NicLimit,
};
use std::process::Command;
use std::sync::Arc;

/// A lane takes the slices that its queue pairs hold and returns the next.
#[test]
fn full_lane_returns_the_next_slice() {
    // Nobody answers, so that no slice leaves its place to another.
    let small = |config| NicConfig { depth: 4, ..config };
    let (one, other) = unanswered(&Link::new(13), small, 2);
    one.post_all(&other, Direction::Write, 16);
    one.nic.retire(LANE).unwrap();
    let ends = one.told.ends(16);
    let not_posted =
        ends.iter().filter(|end| **end == CompletionStatus::Released(Sent::None)).count();
    assert_eq!(not_posted, 16 - 2 * 4, "{ends:?}");
}

#[test]
fn lanes_are_made_up_to_the_limit_and_once_each() {
    let site = Site::new(NicConfig { lanes_max: 2, ..config("rxe0") });
    site.nic.create(Lifecycle(1), &[1]).unwrap();
    let twice = site.nic.create(Lifecycle(1), &[1]).unwrap_err();
    assert!(twice.detail.contains("exists"), "{twice}");
    site.nic.create(Lifecycle(2), &[1]).unwrap();
    let third = site.nic.create(Lifecycle(3), &[1]).unwrap_err();
    assert!(third.detail.contains("limit of 2"), "{third}");
    site.nic.retire(Lifecycle(1)).unwrap();
    site.nic.create(Lifecycle(3), &[1]).unwrap();
    assert!(site.nic.create(Lifecycle(4), &[]).is_err());
    assert!(site.nic.create(Lifecycle(4), &[1; 65]).is_err());
    assert!(site.nic.create(Lifecycle(4), &[0x0100_0000]).is_err());
    assert_eq!(site.nic.lanes(), 2);
}

/// Queue pairs are created up to the limit, and the error names the count.
#[test]
fn queue_pair_limit_error_names_the_count() {
    let site = Site::new(NicConfig { queue_pairs_max: 5, ..config("rxe0") });
    site.nic.create(Lifecycle(1), &[1, 2, 3]).unwrap();
    let error = site.nic.create(Lifecycle(2), &[1, 2, 3]).unwrap_err();
    let limit = LimitReached { limit: NicLimit::QueuePairs, in_use: 3, max: 5 };
    assert_eq!((error.limit, error.side), (Some(limit), Side::Local), "{error}");
    assert!(
        error.to_string().contains("3 of 5 are in use by this process; retire idle lanes"),
        "{error}"
    );
    site.nic.create(Lifecycle(2), &[1, 2]).unwrap();
    let load = site.nic.load();
    assert_eq!((load.queue_pairs, load.queue_pairs_max, load.lanes), (5, 5, 2));
    site.nic.retire(Lifecycle(1)).unwrap();
    site.nic.create(Lifecycle(3), &[1, 2, 3]).unwrap();
}

/// Lanes fit into completion queues up to the limit, and again after a retire.
#[test]
fn completion_queue_limit_is_freed_by_retire() {
    const DEPTH: u32 = 8;
    let small = NicConfig { completion_entries: DEPTH, depth: DEPTH, ..config("rxe0") };
    let site = Site::new(small);
    let room = COMPLETION_QUEUES_MAX as u64;
    for lane in (0..room).map(Lifecycle) {
        site.nic.create(lane, &[1]).unwrap();
    }
    let error = site.nic.create(Lifecycle(room), &[1]).unwrap_err();
    let entries = room * u64::from(DEPTH);
    let limit = LimitReached { limit: NicLimit::CompletionEntries, in_use: entries, max: entries };
    assert_eq!(error.limit, Some(limit), "{error}");
    assert_eq!(site.nic.lanes(), COMPLETION_QUEUES_MAX, "nothing is left of what was refused");
    site.nic.retire(Lifecycle(3)).unwrap();
    site.nic.create(Lifecycle(room), &[1]).unwrap();
    assert_eq!(site.nic.load().completion_entries, entries);
}

/// A lane that needs more completions than the device can hold is refused.
#[test]
fn lane_past_the_cq_limit_is_refused() {
    let site = Site::new(NicConfig { depth: DEPTH_MAX, ..config("rxe0") });
    let error = site.nic.create(LANE, &[1; 64]).unwrap_err();
    assert_eq!(error.limit.map(|limit| limit.limit), Some(NicLimit::CompletionEntries), "{error}");
    assert!(error.detail.contains("need 262144 entries"), "{error}");
    assert!(site.nic.skip_numbers(NUMBERS_SKIPPED_MAX + 1).is_err());
}

/// Runs one test of this program by itself, where nothing more may be locked into memory.
#[test]
fn memlock_error_names_limit_and_cure() {
    const CHILD: &str = "HANDFAST_LITTLE_LOCKED_MEMORY";
    const NAME: &str = "limits::memlock_error_names_limit_and_cure";
    if std::env::var_os(CHILD).is_none() {
        let output = Command::new("prlimit")
            .args(["--memlock=262144:262144", "setpriv", "--bounding-set=-ipc_lock"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", NAME])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        return;
    }
    let sink = Arc::new(crate::support::Recorder::default());
    let nic = Nic::open(config("rxe0"), sink).unwrap();
    let memory = Memory::zeroed(1 << 20).unwrap();
    let Err(error) = nic.register(memory.whole(), Access::READ) else { panic!("it is locked") };
    let limit = error.limit.unwrap_or_else(|| panic!("no limit is named: {error}"));
    assert_eq!((limit.limit, limit.max), (NicLimit::LockedMemory, 262_144));
    assert!(error.to_string().contains("ulimit -l"), "{error}");
}

/// A message that names nothing to connect to is refused, and changes nothing. A lane is connected once.
#[test]
fn a_lane_is_wired_once_and_only_towards_what_can_be_wired() {
    let (one, other) = (Site::new(config("rxe0")), Site::new(config("rxe1")));
    let is_managed = one.nic.uses_connection_manager();
    let mine = one.nic.create(LANE, &[1]).unwrap();
    let theirs = other.nic.create(LANE, &[2]).unwrap();
    let of_both = [
        Body { rd_atomic: 0, ..theirs.clone() },
        Body { queue_pairs: vec![], psns: vec![], ..theirs.clone() },
    ];
    let of_its_kind = match is_managed {
        true => vec![Body { connection_manager: Some("10.0.0.2:1".into()), ..theirs.clone() }],
        false => vec![
            Body { mtu: 255, ..theirs.clone() },
            Body { gid: "10.0.0.2".to_owned(), ..theirs.clone() },
            Body { queue_pairs: vec![1 << 24], ..theirs.clone() },
            Body { psns: vec![], ..theirs.clone() },
            Body { lid: 1 << 16, ..theirs.clone() },
        ],
    };
    for wrong in of_both.iter().chain(&of_its_kind) {
        let error = one.nic.connect(LANE, wrong).unwrap_err();
        assert_eq!(error.side, Side::Peer, "{error}");
    }
    other.nic.note_request(None, &mine);
    one.nic.note_request(None, &theirs);
    one.nic.connect(LANE, &theirs).unwrap();
    let (next, words) = match is_managed {
        true => (with(&theirs, |it| it.token.0 ^= 1), "connected to another announcement"),
        false => (theirs.clone(), "wired before"),
    };
    let again = one.nic.connect(LANE, &next).unwrap_err();
    assert!(again.detail.contains(words), "{again}");
    assert!(one.nic.connect(Lifecycle(99), &theirs).is_err());
    other.nic.connect(LANE, &mine).unwrap();
}

#[test]
fn what_can_never_be_posted_is_refused_and_the_lane_goes_on() {
    let (one, other) = connected(config("rxe0"), config("rxe1"), 1);
    let foreign = other.nic.register(one.memory.whole(), Access::READ).unwrap();
    let write = |slice| one.posting(&other, slice, Direction::Write, 0, 64);
    let elsewhere = Memory::zeroed(64).unwrap();
    let mut wrong: Vec<_> = (1..=5).map(write).collect();
    wrong[0].memory = Some(foreign.memory().clone());
    wrong[1].span = one.memory.span(0, 0).unwrap();
    wrong[2].span = elsewhere.whole();
    wrong[3].remote.key = u64::MAX;
    wrong[4].memory = None;
    one.nic.post(LANE, &mut wrong);
    assert!(wrong.is_empty());
    let ends = one.told.ends(5);
    assert!(ends.iter().all(|end| matches!(end, CompletionStatus::Refused(_))), "{ends:?}");
    one.told.forget();
    one.nic.post(LANE, &mut vec![write(6)]);
    assert_eq!(one.told.ends(1), [CompletionStatus::Done]);
}

#[test]
fn nothing_is_posted_before_the_lane_is_wired() {
    let (one, other) = (Site::new(config("rxe0")), Site::new(config("rxe1")));
    one.nic.post(LANE, &mut vec![one.posting(&other, 1, Direction::Write, 0, 64)]);
    one.nic.create(LANE, &[1]).unwrap();
    one.nic.post(LANE, &mut vec![one.posting(&other, 2, Direction::Write, 0, 64)]);
    assert_eq!(
        one.told.ends(2),
        [CompletionStatus::Released(Sent::None), CompletionStatus::Released(Sent::None)]
    );
}

#[test]
fn memory_that_cannot_be_registered_is_told() {
    let site = Site::new(config("rxe0"));
    let memory = Memory::zeroed(4096).unwrap();
    let nothing = memory.span(0, 0).unwrap();
    assert!(site.nic.register(nothing, Access::READ).is_err());
}

/// The drivers of soft-RoCE, soft-iWARP and eRDMA have no way to another device's memory.
#[test]
fn dma_buf_is_refused_without_driver_support() {
    let site = Site::new(config("rxe0"));
    let profile = site.nic.recognised().profile.name;
    let lacks = ["rxe", "siw"].contains(&profile) || profile.starts_with("erdma");
    assert_eq!(site.nic.offers_dmabuf(), !lacks, "{profile}");
}

#[test]
fn a_device_that_is_not_there_is_told_with_those_that_are() {
    let sink = Arc::new(crate::support::Recorder::default());
    let Err(error) = Nic::open(NicConfig::new("mlx5_9"), sink) else { panic!("it was opened") };
    assert_eq!((error.side, error.device.as_str()), (Side::Configuration, "mlx5_9"));
    assert!(crate::wires::nics().iter().all(|nic| error.detail.contains(nic)), "{error}");
}

#[test]
fn the_ipv4_address_is_chosen_and_explained() {
    let site = Site::new(config("rxe0"));
    assert_eq!(site.nic.recognised().to_string(), "rxe (made in software on veth0)");
    let gid = site.nic.gid();
    assert_eq!(gid.entry.address.to_ipv4_mapped(), Some([10, 0, 0, 1].into()), "{}", gid.why);
    assert!(gid.why.contains("an IPv4 address; passed over: index 0 fe80"), "{}", gid.why);
}

#[test]
fn a_machine_without_the_library_is_told_so() {
    let script = "for library in /usr/lib/*/libibverbs.so.1; do \
                  mount --bind /dev/null $library; done; exec \"$0\" --exact --nocapture \
                  program::what_is_missing_for_rdma_is_told_and_nothing_else_happens";
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .env("HANDFAST_WITHOUT_LIBRARY", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("libibverbs.so.1"), "{output:?}");
}
