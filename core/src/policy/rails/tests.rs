use super::*;
use alloc::string::{String, ToString};
use alloc::{format, vec};
use proptest::prelude::*;

fn node() -> NodeName {
    NodeName::new("b:1").unwrap()
}

fn plan(nic: usize) -> RailPlan {
    let name = format!("mlx5_{nic}");
    let path = NicPath::over_rail(&node(), &name, &name).unwrap();
    RailPlan { path, peer_device: nic }
}

fn tcp() -> NicPath {
    NicPath { node: node(), nic: NodeName::new("tcp").unwrap() }
}

fn rails(count: usize, with_tcp: bool) -> Rails {
    let plans: Vec<RailPlan> = (0..count).map(plan).collect();
    let tcp = tcp();
    Rails::new(&plans, with_tcp.then_some(&tcp))
}

fn error(side: Side, call: &'static str) -> TransportError {
    TransportError { side, call: call.into(), code: 0, detail: String::new() }
}

fn cut() -> TransportError {
    error(Side::Peer, "completion")
}

fn outputs(rails: &mut Rails) -> Vec<RailOutput> {
    core::iter::from_fn(|| rails.poll_output()).collect()
}

fn open(nic: usize) -> RailOutput {
    RailOutput::Open(plan(nic).path)
}

/// Seconds as an instant.
fn at(seconds: u64) -> Instant {
    Instant(seconds * 1_000_000_000)
}

/// Two rails that are up on lanes 1 and 2.
fn two_up(with_tcp: bool) -> Rails {
    let mut rails = rails(2, with_tcp);
    rails.handle_demand();
    assert_eq!(outputs(&mut rails), [open(0), open(1)]);
    for nic in [0, 1] {
        let lane = Lifecycle(nic as u64 + 1);
        assert_eq!(rails.handle_lane_up(at(0), &plan(nic).path, lane), RailVerdict::Use);
    }
    rails.handle_busy(true);
    assert_eq!(outputs(&mut rails), []);
    rails
}

/// A rail waits for the lane that it has asked for until that is up. TCP waits for no lane while rails work.
#[test]
fn rail_waits_for_the_lane_that_it_asked_for() {
    let mut rails = rails(2, true);
    let waits =
        |rails: &Rails| [plan(0).path, plan(1).path, tcp()].map(|path| rails.is_opening(&path));
    rails.handle_demand();
    assert_eq!(waits(&rails), [true, true, false]);
    for nic in [0, 1] {
        rails.handle_lane_up(at(0), &plan(nic).path, Lifecycle(nic as u64 + 1));
    }
    assert_eq!(waits(&rails), [false; 3]);
    rails.handle_busy(false);
    rails.handle_lane_down(at(0), Lifecycle(2), Some(&cut()));
    assert_eq!(waits(&rails), [false; 3], "there is no work");
    rails.handle_fence_demand(&plan(1).path);
    assert_eq!(waits(&rails), [false, true, false]);
}

/// A demand opens every rail, and no TCP lane while one works.
#[test]
fn demand_opens_every_rail_and_no_tcp() {
    let mut rails = two_up(true);
    rails.handle_lane_down(at(1), Lifecycle(1), Some(&cut()));
    assert_eq!(outputs(&mut rails), [open(0)], "it is opened again at once");
    assert_eq!(rails.handle_lane_up(at(1), &plan(0).path, Lifecycle(3)), RailVerdict::Probe);
    assert!(rails.handle_probe_answered(at(2), Lifecycle(3)));
    assert_eq!(outputs(&mut rails), []);
}

/// A rail that fails its probe pauses for longer each time and returns by itself.
#[test]
fn failed_probe_doubles_the_pause() {
    let mut rails = two_up(true);
    let mut now = at(1);
    rails.handle_lane_down(now, Lifecycle(1), Some(&cut()));
    assert_eq!(outputs(&mut rails), [open(0)]);
    let mut pauses = Vec::new();
    for lane in 10..17 {
        assert_eq!(rails.handle_lane_up(now, &plan(0).path, Lifecycle(lane)), RailVerdict::Probe);
        rails.handle_lane_down(now, Lifecycle(lane), Some(&cut()));
        assert_eq!(outputs(&mut rails), [RailOutput::Close(plan(0).path)]);
        let until = rails.poll_timeout().unwrap();
        pauses.push((until.0 - now.0) / 1_000_000_000);
        rails.handle_timeout(Instant(until.0 - 1));
        assert_eq!(outputs(&mut rails), []);
        rails.handle_timeout(until);
        assert_eq!(outputs(&mut rails), [open(0)]);
        now = until;
    }
    assert_eq!(pauses, [2, 4, 8, 16, 30, 30, 30]);
    assert_eq!(rails.handle_lane_up(now, &plan(0).path, Lifecycle(99)), RailVerdict::Probe);
    assert!(rails.handle_probe_answered(now, Lifecycle(99)));
    let later = now + RAIL_STEADY;
    rails.handle_lane_down(later, Lifecycle(99), Some(&cut()));
    assert_eq!(outputs(&mut rails), [open(0)], "a lane that was steady begins anew");
    assert_eq!(rails.rails[0].failures, 1);
}

/// A local port is retried after the shortest pause, however often it failed.
#[test]
fn local_port_retries_after_the_shortest_pause() {
    let mut rails = two_up(false);
    rails.handle_lane_down(at(1), Lifecycle(1), Some(&error(Side::Local, "completion")));
    let mut now = at(1);
    for _ in 0..8 {
        assert_eq!(outputs(&mut rails), [open(0)]);
        rails.handle_open_failed(now, &plan(0).path, &error(Side::Local, "ibv_modify_qp(RTR)"));
        let until = rails.poll_timeout().unwrap();
        assert_eq!(until, now + RAIL_PAUSE_MIN);
        now = until;
        rails.handle_timeout(now);
    }
}

/// With no working rail lanes run over TCP, with the reason, until a rail returns.
#[test]
fn tcp_replaces_failed_rails_until_one_returns() {
    let mut rails = two_up(true);
    rails.handle_lane_down(at(1), Lifecycle(1), Some(&cut()));
    assert_eq!(outputs(&mut rails), [open(0)]);
    rails.handle_lane_down(at(1), Lifecycle(2), Some(&cut()));
    assert_eq!(
        outputs(&mut rails),
        [open(1), RailOutput::FallBack(cut()), RailOutput::Open(tcp())]
    );
    assert!(rails.is_opening(&tcp()));
    assert_eq!(rails.handle_lane_up(at(1), &tcp(), Lifecycle(5)), RailVerdict::Use);
    assert!(!rails.is_opening(&tcp()));
    for (nic, lane) in [(0, 6), (1, 7)] {
        assert_eq!(
            rails.handle_lane_up(at(1), &plan(nic).path, Lifecycle(lane)),
            RailVerdict::Probe
        );
        rails.handle_lane_down(at(3), Lifecycle(lane), Some(&cut()));
        assert_eq!(outputs(&mut rails), [RailOutput::Close(plan(nic).path)]);
    }
    let until = rails.poll_timeout().unwrap();
    rails.handle_timeout(until);
    assert_eq!(outputs(&mut rails), [open(0), open(1)]);
    assert_eq!(rails.handle_lane_up(until, &plan(1).path, Lifecycle(9)), RailVerdict::Probe);
    assert!(rails.handle_probe_answered(until, Lifecycle(9)));
    assert_eq!(outputs(&mut rails), [RailOutput::Close(tcp())]);
    rails.handle_lane_down(until, Lifecycle(5), None);
    assert_eq!(outputs(&mut rails), [], "the lane over TCP is not wanted back");
}

/// The last rail is retried at once, and the demand fails after a bounded number of times.
#[test]
fn last_rail_is_retried_a_bounded_number_of_times() {
    let mut rails = two_up(false);
    rails.handle_lane_down(at(1), Lifecycle(1), Some(&cut()));
    rails.handle_lane_down(at(1), Lifecycle(2), Some(&cut()));
    assert_eq!(outputs(&mut rails), [open(0), open(1)]);
    let mut lane = 10;
    let mut tries = 0;
    loop {
        for nic in [0, 1] {
            rails.handle_lane_up(at(2), &plan(nic).path, Lifecycle(lane + nic as u64));
        }
        for nic in [0, 1] {
            rails.handle_lane_down(at(2), Lifecycle(lane + nic), Some(&cut()));
        }
        lane += 2;
        tries += 1;
        let done = outputs(&mut rails);
        if done.contains(&RailOutput::Lost(cut())) {
            break;
        }
        assert!(done.ends_with(&[open(0), open(1)]), "none is left alone: {done:?}");
    }
    assert_eq!(tries, RAIL_FAILURES_MAX - 1);
    rails.handle_demand();
    assert_eq!(outputs(&mut rails), [open(0), open(1)], "the next demand tries all");
}

/// Rails whose local ports fail in turn, each while another is tried, lose the demand in the end.
#[test]
fn rails_failing_in_turn_lose_the_demand() {
    let mut rails = rails(2, false);
    rails.handle_busy(true);
    assert_eq!(outputs(&mut rails), [open(0), open(1)]);
    let gone = error(Side::Local, "create");
    let mut lost = 0;
    for second in 1..=2 * u64::from(RAIL_FAILURES_MAX) {
        assert_eq!(lost, 0);
        let nic = usize::from(second % 2 == 0);
        rails.handle_open_failed(at(3 * second), &plan(nic).path, &gone);
        lost = outputs(&mut rails).iter().filter(|it| matches!(it, RailOutput::Lost(_))).count();
        rails.handle_timeout(at(3 * second + 1));
        outputs(&mut rails);
    }
    assert_eq!(lost, 1, "each has failed as often as it may");
}

/// Rails that find a process silent in turn, each while another pauses, lose the demand.
#[test]
fn rails_unanswered_in_turn_lose_the_demand() {
    let mut rails = rails(2, false);
    rails.handle_busy(true);
    assert_eq!(outputs(&mut rails), [open(0), open(1)]);
    let silent = error(Side::Peer, "handshake");
    rails.handle_open_failed(at(1), &plan(0).path, &silent);
    rails.handle_timeout(at(2));
    assert_eq!(outputs(&mut rails), [open(0)], "the other rail is still being tried");
    rails.handle_open_failed(at(4), &plan(1).path, &silent);
    assert_eq!(outputs(&mut rails), [RailOutput::Lost(silent)]);
}

/// Lanes of the peer are used: that over a rail is not opened again, and one over TCP is no fallback.
#[test]
fn lanes_of_the_peer_are_used() {
    let mut rails = rails(2, true);
    rails.handle_busy(false);
    assert_eq!(outputs(&mut rails), [], "there is no demand");
    for (path, lane) in [(plan(0).path, 1), (tcp(), 2)] {
        assert_eq!(rails.handle_lane_up(at(0), &path, Lifecycle(lane)), RailVerdict::Use);
    }
    rails.handle_demand();
    assert_eq!(outputs(&mut rails), [open(1)]);
    rails.handle_lane_up(at(0), &plan(1).path, Lifecycle(3));
    assert_eq!(outputs(&mut rails), [], "the peer closes its lane over TCP");
}

/// Transfers that outlive the loss of all rails are no new demand.
#[test]
fn busy_after_a_loss_opens_nothing() {
    let mut rails = rails(1, false);
    rails.handle_demand();
    outputs(&mut rails);
    let silent = error(Side::Peer, "handshake");
    rails.handle_open_failed(at(1), &plan(0).path, &silent);
    assert_eq!(outputs(&mut rails), [RailOutput::Lost(silent)]);
    rails.handle_busy(true);
    assert_eq!(outputs(&mut rails), []);
    rails.handle_busy(false);
    rails.handle_busy(true);
    assert_eq!(outputs(&mut rails), [open(0)], "new work");
}

/// A lane that ends for the configuration of a side disables its rail.
#[test]
fn misconfigured_rail_is_not_opened_again() {
    let mut rails = two_up(false);
    rails.handle_lane_down(at(1), Lifecycle(1), Some(&error(Side::Configuration, "completion")));
    assert_eq!((outputs(&mut rails), rails.poll_timeout()), (vec![], None));
    assert_eq!(rails.stance(&plan(0).path), RailStance::GivenUp);
}

/// Plans are compared by their paths, up to the limit of rails.
#[test]
fn plans_in_use_are_recognised() {
    let plans: Vec<RailPlan> = (0..RAILS_MAX + 1).map(plan).collect();
    let rails = Rails::new(&plans, None);
    assert!(rails.are(&plans) && rails.are(&plans[..RAILS_MAX]));
    assert!(!rails.are(&plans[1..]) && !rails.are(&plans[..1]));
}

/// Messages name the class of a failure.
#[test]
fn failure_class_has_a_name() {
    for (side, call, name) in [
        (Side::Local, "create", "local port"),
        (Side::Peer, "completion", "peer rail"),
        (Side::Peer, "handshake", "peer process"),
        (Side::Protection, "completion", "protection"),
        (Side::Configuration, "wire", "configuration"),
    ] {
        assert_eq!(FailureClass::of(&error(side, call)).to_string(), name);
    }
}

/// While every rail and TCP pause, a demand tries all of them at once.
#[test]
fn paused_tcp_is_tried_with_the_paused_rails() {
    let mut rails = rails(1, true);
    rails.handle_demand();
    rails.handle_open_failed(at(1), &plan(0).path, &cut());
    let fall_back = [RailOutput::FallBack(cut()), RailOutput::Open(tcp())];
    assert_eq!(outputs(&mut rails), [vec![open(0)], fall_back.to_vec()].concat());
    rails.handle_timeout(at(9));
    assert_eq!(outputs(&mut rails), [open(0)]);
    rails.handle_open_failed(at(9), &tcp(), &cut());
    assert_eq!(outputs(&mut rails), [], "the rail is being tried");
    rails.handle_lane_up(at(9), &plan(0).path, Lifecycle(1));
    rails.handle_lane_down(at(9), Lifecycle(1), Some(&cut()));
    let tried = vec![RailOutput::Close(plan(0).path), open(0)];
    assert_eq!(outputs(&mut rails), [tried, fall_back.to_vec()].concat());
}

/// A rail that fails while the peer is silent on the other loses the demand.
#[test]
fn failed_rail_beside_a_silent_one_loses_the_demand() {
    let mut rails = rails(2, false);
    rails.handle_busy(true);
    outputs(&mut rails);
    rails.handle_open_failed(at(1), &plan(0).path, &error(Side::Peer, "handshake"));
    assert_eq!(outputs(&mut rails), []);
    rails.handle_open_failed(at(1), &plan(1).path, &cut());
    assert_eq!(outputs(&mut rails), [RailOutput::Lost(cut())]);
}

/// An unreachable process fails the demand and blames no rail.
#[test]
fn unreachable_process_blames_no_rail() {
    let mut rails = rails(2, true);
    rails.handle_demand();
    outputs(&mut rails);
    let unreachable = error(Side::Peer, "handshake");
    rails.handle_open_failed(at(1), &plan(0).path, &unreachable);
    assert_eq!(outputs(&mut rails), []);
    rails.handle_open_failed(at(1), &plan(1).path, &unreachable);
    assert_eq!(outputs(&mut rails), [RailOutput::Lost(unreachable)]);
    rails.handle_demand();
    assert_eq!(outputs(&mut rails), [open(0), open(1)]);
    assert_eq!(rails.handle_lane_up(at(2), &plan(0).path, Lifecycle(1)), RailVerdict::Use);
}

/// A final error disables a rail; with all disabled the demand fails.
#[test]
fn final_error_disables_a_rail() {
    let mut rails = rails(2, false);
    rails.handle_demand();
    outputs(&mut rails);
    let wrong = error(Side::Configuration, "wire");
    rails.handle_open_failed(at(1), &plan(0).path, &wrong);
    assert_eq!((outputs(&mut rails), rails.poll_timeout()), (vec![], None));
    assert_eq!(rails.stance(&plan(0).path), RailStance::GivenUp);
    assert_eq!(rails.stance(&plan(1).path), RailStance::Pursued);
    assert_eq!(rails.stance(&tcp()), RailStance::Unknown);
    rails.handle_open_failed(at(1), &plan(1).path, &wrong);
    assert_eq!(outputs(&mut rails), [RailOutput::Lost(wrong.clone())]);
    rails.handle_demand();
    assert_eq!(outputs(&mut rails), [RailOutput::Lost(wrong)]);
}

/// The intended end of a lane blames no rail, and work reopens it.
#[test]
fn intended_end_blames_no_rail() {
    let mut rails = two_up(true);
    rails.handle_busy(false);
    rails.handle_lane_down(at(1), Lifecycle(1), None);
    assert_eq!(outputs(&mut rails), []);
    rails.handle_busy(true);
    assert_eq!(outputs(&mut rails), [open(0)]);
    assert_eq!(rails.handle_lane_up(at(1), &plan(0).path, Lifecycle(3)), RailVerdict::Use);
}

/// A refused access says nothing about its rail, which is opened again once no other is left, also
/// after the tenth.
#[test]
fn refused_accesses_leave_no_peer_without_rails() {
    let refused = error(Side::Protection, "completion");
    for with_tcp in [false, true] {
        let mut rails = two_up(with_tcp);
        for round in 0..10 {
            let lane = |nic: u64| Lifecycle(2 * round + nic + 1);
            rails.handle_lane_down(at(round), lane(0), Some(&refused));
            assert_eq!(outputs(&mut rails), [], "the other rail has work");
            rails.handle_lane_down(at(round), lane(1), Some(&refused));
            assert_eq!(outputs(&mut rails), [open(0), open(1)]);
            for nic in [0, 1] {
                let lane = Lifecycle(2 * (round + 1) + nic + 1);
                let verdict = rails.handle_lane_up(at(round), &plan(nic as usize).path, lane);
                assert_eq!(verdict, RailVerdict::Use);
            }
        }
    }
}

/// A rail that cannot be opened does not lose the peer whose other rail refused an access.
#[test]
fn refused_access_is_no_failed_rail() {
    let mut rails = rails(2, false);
    rails.handle_demand();
    outputs(&mut rails);
    rails.handle_lane_up(at(0), &plan(0).path, Lifecycle(1));
    rails.handle_busy(true);
    rails.handle_lane_down(at(1), Lifecycle(1), Some(&error(Side::Protection, "completion")));
    assert_eq!(outputs(&mut rails), []);
    rails.handle_open_failed(at(1), &plan(1).path, &cut());
    assert_eq!(outputs(&mut rails), [open(0)]);
}

/// Every NIC of the side with more has a rail, and NICs of one name are paired.
#[test]
fn every_nic_of_the_larger_side_has_a_rail() {
    let names = |ours: &[&str], theirs: &[&str]| -> Vec<String> {
        plan_rails(&node(), ours, theirs).iter().map(|plan| plan.path.nic.to_string()).collect()
    };
    assert_eq!(names(&["a", "b"], &["b", "a"]), ["a~a", "b~b"]);
    assert_eq!(names(&["a", "b"], &["x"]), ["x~a", "x~b"]);
    assert_eq!(names(&["a", "b"], &["x", "y", "z"]), ["x~a", "y~b", "z~a"]);
    assert_eq!(names(&["a", "b"], &["a", "b", "c"]), ["a~a", "b~b", "c~a"]);
    assert!(names(&["a"], &["x", "y"]).is_empty(), "one of ours, one lane");
    assert!(names(&["a", "b"], &[]).is_empty(), "a peer without devices");
    assert_eq!(names(&["a~", "b"], &["x", "y"]), ["y~b"], "a name that no rail can have");
    let many: Vec<String> = (0..12).map(|n| format!("n{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(plan_rails(&node(), &many, &["x"]).len(), RAILS_MAX);
}

#[test]
fn rails_past_the_limit_are_not_used() {
    let mut rails = rails(RAILS_MAX + 3, false);
    rails.handle_demand();
    assert_eq!(outputs(&mut rails).len(), RAILS_MAX);
}

#[derive(Clone, Debug)]
enum Move {
    Up(usize),
    Answer(usize),
    Down(usize, Option<Side>),
    Fail(usize, Side),
    Pass,
    Busy(bool),
}

fn any_move() -> impl Strategy<Value = Move> {
    let side = || {
        prop_oneof![Just(Side::Local), Just(Side::Peer), Just(Side::Peer), Just(Side::Protection)]
    };
    prop_oneof![
        4 => (0..4_usize).prop_map(Move::Up),
        2 => (0..4_usize).prop_map(Move::Answer),
        2 => (0..4_usize, proptest::option::of(side())).prop_map(|(n, side)| Move::Down(n, side)),
        2 => (0..4_usize, side()).prop_map(|(n, side)| Move::Fail(n, side)),
        1 => Just(Move::Pass),
        1 => any::<bool>().prop_map(Move::Busy),
    ]
}

proptest! {
    /// Transfers under way have a lane, or one is being opened or probed, or a retry is timed, or the
    /// demand has failed. No lane is opened without a demand.
    #[test]
    fn work_never_waits_for_nothing(moves in proptest::collection::vec(any_move(), 1..120),
                                    with_tcp in any::<bool>()) {
        let mut rails = rails(3, with_tcp);
        let (mut now, mut next, mut busy) = (at(1), 1, false);
        for step in moves {
            let rail_at = |n: usize, rails: &Rails| -> Option<Rail> {
                rails.rails.get(n).or(rails.tcp.as_ref()).cloned()
            };
            match step {
                Move::Up(n) => {
                    if let Some(rail) = rail_at(n, &rails).filter(|r| r.state == State::Opening) {
                        rails.handle_lane_up(now, &rail.plan.path, Lifecycle(next));
                        next += 1;
                    }
                }
                Move::Answer(n) => {
                    if let Some(Rail { state: State::Probing(lane), .. }) = rail_at(n, &rails) {
                        rails.handle_probe_answered(now, lane);
                    }
                }
                Move::Down(n, side) => {
                    let rail = rail_at(n, &rails);
                    if let Some(State::Probing(lane) | State::Up { lane, .. }) = rail.map(|r| r.state) {
                        let error = side.map(|side| error(side, "completion"));
                        rails.handle_lane_down(now, lane, error.as_ref());
                    }
                }
                Move::Fail(n, side) => {
                    if let Some(rail) = rail_at(n, &rails) {
                        rails.handle_open_failed(now, &rail.plan.path, &error(side, "handshake"));
                    }
                }
                Move::Pass => {
                    if let Some(due) = rails.poll_timeout() {
                        now = now.max(due);
                        rails.handle_timeout(now);
                    }
                }
                Move::Busy(now_busy) => {
                    busy = now_busy;
                    rails.handle_busy(busy);
                }
            }
            let done = outputs(&mut rails);
            prop_assert!(done.len() <= 8, "{done:?}");
            if done.iter().any(|output| matches!(output, RailOutput::Lost(_))) {
                busy = false;
                rails.handle_busy(false);
            }
            let tries = rails.all().any(|rail| {
                matches!(rail.state, State::Opening | State::Probing(_) | State::Up { .. })
            });
            prop_assert!(!busy || tries || rails.poll_timeout().is_some(), "{rails:?}");
            let carried = rails.rails.iter().any(|rail| matches!(rail.state, State::Up { .. }));
            let tcp_used = rails.tcp.as_ref().is_some_and(|tcp| tcp.state != State::Closed);
            prop_assert!(!(carried && tcp_used) , "TCP is used while a rail works: {rails:?}");
        }
    }
}
