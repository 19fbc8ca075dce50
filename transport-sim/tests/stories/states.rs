//! Every step between states, on every device, and posting in every state.

use crate::helpers::*;
use handfast_transport_sim::verbs::*;

/// Responses to each step, written by hand from known driver behaviour: for each state those to
/// RESET, INIT, RTR, RTS, SQD, SQE and ERR. A letter is the next state, a number the returned
/// error.
const SHARED: &[(QpState, &str)] = &[
    (QpState::Reset, "RESET INIT 22 22 22 22 22"),
    (QpState::Init, "RESET INIT RTR 22 22 22 ERR"),
    (QpState::Rtr, "RESET 22 22 RTS 22 22 ERR"),
    (QpState::Rts, "RESET 22 22 RTS SQD 22 ERR"),
    (QpState::Sqd, "RESET 22 22 RTS SQD 22 ERR"),
    (QpState::Err, "RESET 22 22 22 22 22 ERR"),
];
const IRDMA_STEPS: &[(QpState, &str)] = &[
    (QpState::Reset, "ERR INIT 22 22 22 22 22"),
    (QpState::Init, "ERR INIT RTR 22 22 22 ERR"),
    (QpState::Rtr, "ERR 22 22 RTS 22 22 ERR"),
    (QpState::Rts, "ERR 22 22 RTS SQD 22 ERR"),
    (QpState::Sqd, "ERR 22 22 RTS SQD 22 ERR"),
    (QpState::Err, "ERR 22 22 22 22 22 ERR"),
];
const ERDMA_STANDARD_STEPS: &[(QpState, &str)] = &[
    (QpState::Init, "INIT INIT INIT 22 INIT INIT ERR"),
    (QpState::Err, "ERR ERR ERR ERR ERR ERR ERR"),
];
const SIW_STEPS: &[(QpState, &str)] = &[
    (QpState::Init, "INIT INIT INIT 22 INIT INIT ERR"),
    (QpState::Err, "ERR ERR ERR ERR ERR ERR ERR"),
];
const IRDMA_IWARP_STEPS: &[(QpState, &str)] = &[
    (QpState::Reset, "ERR INIT 22 22 RESET SQE ERR"),
    (QpState::Init, "ERR INIT INIT 22 INIT SQE ERR"),
    (QpState::Err, "ERR 22 22 22 ERR 22 ERR"),
];
const ERDMA_COMPAT_STEPS: &[(QpState, &str)] = &[
    (QpState::Init, "INIT INIT RTS 22 INIT INIT ERR"),
    (QpState::Rts, "RTS RTS RTS RTS SQD SQE ERR"),
    (QpState::Sqd, "INIT INIT 103 103 SQD SQD ERR"),
    (QpState::Sqe, "SQE SQE SQE SQE SQE SQE ERR"),
    (QpState::Err, "ERR ERR ERR ERR ERR ERR ERR"),
];

fn steps_of(profile: &Profile) -> &'static [(QpState, &'static str)] {
    match profile.name {
        "irdma" => IRDMA_STEPS,
        "erdma-standard" => ERDMA_STANDARD_STEPS,
        "siw" => SIW_STEPS,
        "irdma-iwarp" => IRDMA_IWARP_STEPS,
        "erdma-compat" => ERDMA_COMPAT_STEPS,
        _ => SHARED,
    }
}

/// Everything that a step to this state needs, when it is taken from the state before it.
fn attributes(duo: &Duo, from: QpState, to: QpState) -> Attributes {
    let peer = duo.fabric.nic(duo.b.nic);
    let index = peer.profile().gid_index.unwrap_or(0);
    let dgid = peer.gids()[usize::from(index)].expect("an entry");
    match (from, to) {
        (_, QpState::Init) => Attributes::to_init(Access::ALL),
        (_, QpState::Rtr) => Attributes::to_rtr(index, dgid, duo.b.number, 7),
        (QpState::Init | QpState::Rtr, QpState::Rts) => Attributes::to_rts(9),
        _ => Attributes::to(to),
    }
}

/// A queue pair in a state, by the shortest way.
fn in_state(profile: &'static Profile, state: QpState) -> Duo {
    let mut duo = fresh(profile);
    let to_rts = [QpState::Init, QpState::Rtr, QpState::Rts];
    let way: Vec<QpState> = match state {
        QpState::Reset => Vec::new(),
        QpState::Init => vec![QpState::Init],
        QpState::Rtr => vec![QpState::Init, QpState::Rtr],
        QpState::Err => vec![QpState::Init, QpState::Err],
        QpState::Rts => to_rts.to_vec(),
        other => to_rts.into_iter().chain([other]).collect(),
    };
    for to in way {
        let from = duo.state(duo.a);
        let step = attributes(&duo, from, to);
        duo.fabric.modify(duo.a.nic, duo.a.number, &step).expect("the usual way");
    }
    assert_eq!(duo.state(duo.a), state, "{}", profile.name);
    duo
}

#[test]
fn every_step_from_every_state_does_what_the_device_does() {
    for profile in PROFILES.into_iter().chain([&SIW, &IRDMA_IWARP]) {
        for (from, expected) in steps_of(profile) {
            let found = QpState::ALL.map(|to| {
                let mut duo = in_state(profile, *from);
                let step = attributes(&duo, *from, to);
                match duo.fabric.modify(duo.a.nic, duo.a.number, &step) {
                    Ok(()) => format!("{:?}", duo.state(duo.a)).to_uppercase(),
                    Err(error) => error.code.to_string(),
                }
            });
            assert_eq!(found.join(" "), *expected, "{} from {from:?}", profile.name);
        }
    }
}

#[test]
fn a_refused_step_leaves_the_state_and_names_call_and_value() {
    let mut duo = in_state(&STRICT, QpState::Init);
    let error = duo.modify(duo.a, QpState::Rts).unwrap_err();
    assert_eq!(error.to_string(), "ibv_modify_qp(RTS) returned 22");
    assert_eq!(duo.state(duo.a), QpState::Init);
    let broken = duo.fabric.take_broken_laws();
    assert_eq!(broken, [Law::Refused { nic: 0, state: QpState::Rts, code: 22 }]);
}

/// Laws that are broken past the limit are counted.
#[test]
fn broken_laws_past_the_limit_are_counted() {
    let mut duo = in_state(&STRICT, QpState::Init);
    let broken = Law::Refused { nic: 0, state: QpState::Rts, code: 22 };
    for past in [0, 3] {
        for _ in 0..LAWS_MAX as u64 + past {
            duo.modify(duo.a, QpState::Rts).unwrap_err();
        }
        let laws = duo.fabric.take_broken_laws();
        let (kept, dropped) = laws.split_at(LAWS_MAX);
        assert!(kept.iter().all(|law| *law == broken));
        let expected = (past > 0).then_some(Law::Dropped { laws: past });
        assert_eq!(dropped, expected.as_slice());
    }
    assert_eq!(duo.fabric.take_broken_laws(), []);
}

/// A step without a required attribute is refused, except by eRDMA.
#[test]
fn missing_attribute_is_refused_except_by_erdma() {
    type Forget = fn(&mut Attributes);
    let rtr: [Forget; 5] = [
        |given| given.path_mtu = None,
        |given| given.dest_number = None,
        |given| given.rq_psn = None,
        |given| given.max_dest_rd_atomic = None,
        |given| given.min_rnr_timer = None,
    ];
    let rts: [Forget; 5] = [
        |given| given.timeout = None,
        |given| given.retry_count = None,
        |given| given.rnr_retry = None,
        |given| given.sq_psn = None,
        |given| given.max_rd_atomic = None,
    ];
    for profile in connectable() {
        let cases = rtr.map(|forget| (QpState::Init, QpState::Rtr, forget));
        let cases = cases.into_iter().chain(rts.map(|forget| (QpState::Rtr, QpState::Rts, forget)));
        for (from, to, forget) in cases {
            let from = if profile.checks_attributes { from } else { QpState::Init };
            let mut duo = in_state(profile, from);
            let mut step = attributes(&duo, from, to);
            forget(&mut step);
            if to == QpState::Rts && !profile.checks_attributes {
                continue;
            }
            let result = duo.fabric.modify(duo.a.nic, duo.a.number, &step);
            assert_eq!(result.is_err(), profile.checks_attributes, "{} {to:?}", profile.name);
        }
        let mut duo = in_state(profile, QpState::Init);
        let surplus = Attributes { port: Some(1), ..attributes(&duo, QpState::Init, QpState::Rtr) };
        let result = duo.fabric.modify(duo.a.nic, duo.a.number, &surplus);
        assert_eq!(result.is_err(), profile.checks_attributes, "{} with a port", profile.name);
    }
}

/// RTR checks GIDs and neighbours before it calls the driver.
#[test]
fn rtr_checks_gids_and_neighbours_first() {
    let code = |profile: &'static Profile, spoil: fn(&mut Duo, &mut AddressVector)| {
        let mut duo = in_state(profile, QpState::Init);
        let mut step = attributes(&duo, QpState::Init, QpState::Rtr);
        spoil(&mut duo, step.address.as_mut().expect("an address"));
        let error = duo.fabric.modify(duo.a.nic, duo.a.number, &step).err()?;
        Some((error.code, error.blocked_ms))
    };
    for profile in connectable() {
        let name = profile.name;
        let other_port = code(profile, |_, address| address.port = 2);
        assert_eq!(other_port, Some((22, 0)), "{name}: not the port of INIT");
        let outside = code(profile, |_, address| address.sgid_index = 200);
        assert_eq!(outside, Some((22, 0)), "{name}: beyond the table");
        let empty = code(profile, |_, address| address.sgid_index = 7);
        assert_eq!(empty, Some((61, 0)), "{name}: an empty entry");
        let mixed = code(profile, |_, address| address.dgid.kind = GidKind::LinkLocal);
        assert_eq!(mixed, Some((22, 0)), "{name}: two families");
        let down = code(profile, |duo, _| duo.fabric.set_port(duo.a.nic, false));
        assert_eq!(down, Some((101, 0)), "{name}: own port down");
        let silent = code(profile, |duo, _| duo.fabric.set_port(duo.b.nic, false));
        assert_eq!(silent, Some((110, 1_000)), "{name}: the peer's port down");
        let one_way = code(profile, |duo, _| duo.fabric.cut(duo.b.nic, duo.a.nic));
        assert_eq!(one_way, Some((110, 1_000)), "{name}: answers are lost");
        let gone = code(profile, |duo, _| {
            let (index, _) = gid(&duo.fabric, duo.b.nic);
            duo.fabric.remove_gid(duo.b.nic, usize::from(index));
        });
        assert_eq!(gone, Some((110, 1_000)), "{name}: the peer's address is gone");
        let dead = code(profile, |duo, _| duo.fabric.crash(duo.b.nic, Rebirth::GoesOn));
        assert_eq!(dead, None, "{name}: RTR says nothing about the peer's process");
    }
}

#[test]
fn link_local_addresses_connect_except_on_erdma_in_compat_mode() {
    for profile in connectable() {
        let mut duo = in_state(profile, QpState::Init);
        let local = duo.fabric.nic(duo.b.nic).gids()[0].expect("link-local is first");
        let step = Attributes::to_rtr(0, local, duo.b.number, 7);
        let result = duo.fabric.modify(duo.a.nic, duo.a.number, &step);
        assert_eq!(result.is_err(), profile.refuses_link_local, "{}", profile.name);
    }
}

#[test]
fn an_older_erdma_driver_says_rts_after_a_connect_that_failed() {
    static OLDER: Profile = Profile { refuses_link_local: false, ..ERDMA_COMPAT };
    let mut duo = in_state(&OLDER, QpState::Init);
    let local = duo.fabric.nic(duo.b.nic).gids()[0].expect("link-local is first");
    let step = Attributes::to_rtr(0, local, duo.b.number, 7);
    let error = duo.fabric.modify(duo.a.nic, duo.a.number, &step).unwrap_err();
    assert_eq!(error.code, 97);
    assert_eq!(duo.state(duo.a), QpState::Rts);
    duo.fabric.modify(duo.a.nic, duo.a.number, &Attributes::to_rts(9)).expect("nothing to do");
    duo.write(1, 0, 8);
    assert_eq!(duo.fabric.packets(), [], "it leads nowhere");
}

#[test]
fn an_injected_failure_hits_the_named_step_once() {
    let mut duo = in_state(&STRICT, QpState::Rtr);
    duo.fabric.inject(duo.a.nic, Call::Modify(QpState::Rts), Errno::Enomem);
    let step = attributes(&duo, QpState::Rtr, QpState::Rts);
    let error = duo.fabric.modify(duo.a.nic, duo.a.number, &step).unwrap_err();
    assert_eq!((error.call, error.code), (Call::Modify(QpState::Rts), 12));
    duo.fabric.modify(duo.a.nic, duo.a.number, &step).expect("the second time");
    assert_eq!(duo.fabric.take_broken_laws(), [], "no fault of the caller's");
}

#[test]
fn a_send_before_rts_is_refused_or_kept_as_each_driver_does() {
    for profile in connectable() {
        let mut duo = in_state(profile, QpState::Init);
        let result = duo.post(duo.write_request(1, 0, 8)).map_err(|error| error.code);
        let expected = match profile.name {
            "strict" | "rxe" => Err(22),
            "mlx5" => Err(12),
            _ => Ok(()),
        };
        assert_eq!(result, expected, "{}", profile.name);
        let state = QpState::Init;
        let law = Law::PostedOutsideRts { nic: 0, number: duo.a.number, state };
        assert_eq!(duo.fabric.take_broken_laws(), [law], "{}", profile.name);

        duo.connect(1_000, 2_000);
        duo.write(2, 100, 8);
        duo.fabric.run();
        let ends = duo.ends(duo.a);
        let kept = !matches!(profile.name, "strict" | "mlx5");
        let both = [(1, Status::Success), (2, Status::Success)];
        assert_eq!(ends, both[usize::from(!kept)..], "{}", profile.name);
        let landed = duo.at_b(0, 8) == [0xaa; 8];
        assert_eq!(landed, kept, "{}: a send that was refused lands all the same", profile.name);
    }
}

/// Receives are accepted from INIT on, and in RESET by lax providers.
#[test]
fn receives_are_accepted_from_init_on() {
    for profile in connectable() {
        let mut duo = fresh(profile);
        let result = duo.receive(1, 8).map_err(|error| error.code);
        let expected = match profile.name {
            "strict" | "rxe" => Err(22),
            "mlx5" => Err(12),
            _ => Ok(()),
        };
        assert_eq!(result, expected, "{}", profile.name);
        duo.fabric.modify(duo.b.nic, duo.b.number, &Attributes::to_init(Access::ALL)).expect("ok");
        duo.receive(2, 8).expect("from INIT on");
    }
}

#[test]
fn work_posted_in_error_is_flushed_refused_or_lost() {
    for profile in connectable() {
        let erdma = profile.name.starts_with("erdma");
        let mut duo = connected(profile);
        duo.modify(duo.a, QpState::Err).expect("put in error");
        let result = duo.post(duo.write_request(1, 0, 8)).map_err(|error| error.code);
        assert_eq!(result, if erdma { Err(-5) } else { Ok(()) }, "{} by itself", profile.name);

        let mut duo = connected(profile);
        duo.fabric.break_queue_pair(duo.a.nic, duo.a.number);
        duo.post(duo.write_request(1, 0, 8)).expect("the application does not know yet");
        let flushed = [(1, Status::Flushed)];
        let expected: &[_] = if erdma { &[] } else { &flushed };
        assert_eq!(duo.ends(duo.a), expected, "{} by the device", profile.name);
    }
}

#[test]
fn a_drained_send_queue_holds_what_is_posted_until_it_goes_on() {
    let mut duo = connected(&STRICT);
    duo.modify(duo.a, QpState::Sqd).expect("drained");
    duo.write(1, 0, 8);
    duo.fabric.run();
    assert_eq!(duo.ends(duo.a), []);
    duo.modify(duo.a, QpState::Rts).expect("goes on");
    duo.fabric.run();
    assert_eq!(duo.ends(duo.a), [(1, Status::Success)]);
}

#[test]
fn a_path_mtu_above_the_ports_is_refused_or_not_looked_at() {
    for profile in connectable() {
        let mut duo = in_state(profile, QpState::Init);
        let step = attributes(&duo, QpState::Init, QpState::Rtr);
        let step = Attributes { path_mtu: Some(4_096), ..step };
        let result = duo.fabric.modify(duo.a.nic, duo.a.number, &step).map_err(|error| error.code);
        let refused = matches!(profile.name, "strict" | "mlx5" | "irdma");
        assert_eq!(result, if refused { Err(22) } else { Ok(()) }, "{}", profile.name);
    }
}

#[test]
fn a_new_erdma_queue_pair_that_skips_init_has_no_port() {
    let mut duo = fresh(&ERDMA_COMPAT);
    assert_eq!(duo.state(duo.a), QpState::Init, "a query says INIT");
    let step = attributes(&duo, QpState::Init, QpState::Rtr);
    let error = duo.fabric.modify(duo.a.nic, duo.a.number, &step).unwrap_err();
    assert_eq!(error.code, 22);
}

#[test]
fn work_under_way_in_sqd_holds_soft_roce_there_until_an_error() {
    let mut duo = connected(&RXE);
    duo.fabric.cut(duo.a.nic, duo.b.nic);
    duo.write(1, 0, 8);
    duo.modify(duo.a, QpState::Sqd).expect("drained");
    for state in [QpState::Rts, QpState::Sqd, QpState::Reset] {
        assert!(duo.modify(duo.a, state).is_err(), "{state:?}");
    }
    assert_eq!(duo.fabric.waiting(duo.a.nic).count(), 0, "nothing is sent again");
    duo.modify(duo.a, QpState::Err).expect("put in error");
    assert_eq!(duo.ends(duo.a), [(1, Status::Flushed)]);
}

/// Work posted in SQD waits for the next post on soft-RoCE, and for RTS elsewhere.
#[test]
fn work_posted_in_sqd_waits() {
    for profile in [&RXE, &STRICT] {
        let mut duo = connected(profile);
        duo.modify(duo.a, QpState::Sqd).expect("drained");
        duo.write(1, 0, 8);
        duo.modify(duo.a, QpState::Rts).expect("goes on");
        duo.fabric.run();
        let waits = profile.held_send == HeldSend::NextPost;
        assert_eq!(duo.ends(duo.a).is_empty(), waits, "{}", profile.name);
        duo.write(2, 16, 8);
        duo.fabric.run();
        let left = if waits { vec![1, 2] } else { vec![2] };
        let ends: Vec<u64> = duo.ends(duo.a).iter().map(|(wr_id, _)| *wr_id).collect();
        assert_eq!(ends, left, "{}", profile.name);
    }
}

/// A receive posted in ERR is flushed at once, or with the next step to ERR.
#[test]
fn late_receive_is_flushed_by_profile() {
    for profile in [&RXE, &STRICT] {
        let mut duo = connected(profile);
        duo.modify(duo.b, QpState::Err).expect("put in error");
        duo.receive(1, 8).expect("taken");
        let waits = profile.late_receive == LateReceive::NextError;
        assert_eq!(duo.ends(duo.b).is_empty(), waits, "{}", profile.name);
        duo.modify(duo.b, QpState::Err).expect("once more");
        assert_eq!(duo.ends(duo.b).len(), usize::from(waits), "{}", profile.name);
    }
}

/// Invalid attribute values are refused by drivers that check.
#[test]
fn invalid_values_are_refused_by_strict_drivers() {
    let step = |attributes: Attributes, profile| {
        let mut duo = fresh(profile);
        connect(&mut duo.fabric, duo.a, duo.b, 1, 2).expect("connected");
        let number = duo.create(duo.a.nic);
        let (index, dgid) = gid(&duo.fabric, duo.b.nic);
        let rtr = Attributes::to_rtr(index, dgid, duo.b.number, 1);
        let steps = [Attributes::to_init(Access::ALL), rtr, Attributes::to_rts(1)];
        let steps =
            steps.map(|step| if step.state == attributes.state { attributes } else { step });
        let mut step = |one: &Attributes| duo.fabric.modify(duo.a.nic, number, one).is_ok();
        steps.iter().all(&mut step)
    };
    let (_, dgid) = gid(&fresh(&RXE).fabric, 1);
    let with_mtu = |mtu| Attributes { path_mtu: Some(mtu), ..Attributes::to_rtr(1, dgid, 17, 1) };
    let with_reads = |reads| Attributes { max_rd_atomic: Some(reads), ..Attributes::to_rts(1) };
    assert!(step(with_mtu(4_096), &RXE) && !step(with_mtu(8_192), &RXE));
    assert!(step(with_reads(128), &RXE) && !step(with_reads(129), &RXE));
    assert!(step(with_reads(255), &STRICT));
}
