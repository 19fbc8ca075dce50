//! Ends and new beginnings: reset, destroy, restart, and a second life of a connection.

use crate::helpers::*;
use handfast_transport_sim::verbs::*;

/// Ways to reconnect after one side went to ERR.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Again {
    /// Both queue pairs are destroyed, and new ones created.
    Destroy,
    /// Both queue pairs are taken through RESET, and kept.
    Reset,
}

/// Connects, uses the connection, lets one side fail, connects again, and tries to use that.
fn second_life(profile: &'static Profile, again: Again) -> Result<(), String> {
    let mut duo = connected(profile);
    duo.write(1, 0, 8);
    duo.fabric.run();
    duo.ends(duo.a);
    duo.fabric.break_queue_pair(duo.a.nic, duo.a.number);
    for end in [duo.a, duo.b] {
        match again {
            Again::Destroy => duo.retire(end),
            Again::Reset => duo.modify(end, QpState::Reset).map_err(|error| error.to_string())?,
        }
    }
    if again == Again::Destroy {
        duo.a.number = duo.create(duo.a.nic);
        duo.b.number = duo.create(duo.b.nic);
    }
    let (a, b) = (duo.a, duo.b);
    connect(&mut duo.fabric, a, b, 3_000, 4_000).map_err(|error| error.to_string())?;
    connect(&mut duo.fabric, b, a, 4_000, 3_000).map_err(|error| error.to_string())?;
    let request = duo.write_request(2, 100, 8);
    duo.post(request).map_err(|error| error.to_string())?;
    duo.fabric.run();
    duo.fabric.exhaust(duo.a.nic, duo.a.number);
    match duo.ends(duo.a).as_slice() {
        [(2, Status::Success)] if duo.at_b(100, 8) == [0xaa; 8] => Ok(()),
        ends => Err(format!("{ends:?}")),
    }
}

/// A destroyed and recreated connection works on every device.
#[test]
fn recreated_connection_works_on_every_device() {
    for profile in connectable() {
        assert_eq!(second_life(profile, Again::Destroy), Ok(()), "{}", profile.name);
    }
}

/// A connection that is only reset works on three devices of six.
#[test]
fn reset_connection_works_on_three_devices() {
    let found: Vec<(&str, Result<(), String>)> =
        connectable().map(|profile| (profile.name, second_life(profile, Again::Reset))).collect();
    let refused = Err("ibv_modify_qp(INIT) returned 22".to_owned());
    let expected = [
        ("strict", Ok(())),
        ("rxe", Ok(())),
        ("mlx5", Ok(())),
        // RESET is an error there, and INIT does not follow an error.
        ("irdma", refused),
        // Every step returns 0 and does nothing; what is posted stays for ever.
        ("erdma-compat", Err("[]".to_owned())),
        // The hardware is reset, the provider's ring is not.
        ("erdma-rocev2", Err("[]".to_owned())),
    ];
    assert_eq!(found, expected);
}

#[test]
fn an_erdma_queue_pair_that_is_reset_stays_with_its_old_peer() {
    let mut duo = connected(&ERDMA_COMPAT);
    let nic = duo.fabric.add_nic(&ERDMA_COMPAT);
    let keys = duo.fabric.register(nic, BASE, vec![0xcc; SIZE], Access::ALL).expect("room");
    let third = End { nic, number: duo.create(nic), keys };
    duo.modify(duo.a, QpState::Reset).expect("returns 0");
    connect(&mut duo.fabric, duo.a, third, 1, 2).expect("every step returns 0");
    let bond = duo.fabric.queue_pair(duo.a.nic, duo.a.number).expect("there").bond();
    assert_eq!(bond, Some((duo.b.nic, duo.b.number)));
    duo.write(1, 0, 8);
    duo.fabric.run();
    assert_eq!(duo.at_b(0, 8), [0xaa; 8], "the write goes to the old peer");
}

#[test]
fn erdma_in_standard_mode_stops_at_rts() {
    let mut duo = fresh(&ERDMA_STANDARD);
    let dgid = duo.fabric.nic(duo.b.nic).gids()[0].expect("an entry");
    let a = duo.a;
    let mut step = |step: Attributes| {
        duo.fabric.modify(a.nic, a.number, &step).map_err(|error| error.to_string())
    };
    assert_eq!(step(Attributes::to_init(Access::ALL)), Ok(()));
    assert_eq!(step(Attributes::to_rtr(0, dgid, 1, 0)), Ok(()));
    assert_eq!(step(Attributes::to_rts(0)), Err("ibv_modify_qp(RTS) returned 22".into()));
}

#[test]
fn a_reset_before_init_breaks_a_queue_pair_of_irdma() {
    let mut duo = fresh(&IRDMA);
    duo.modify(duo.a, QpState::Reset).expect("returns 0");
    let init = Attributes::to_init(Access::ALL);
    let error = duo.fabric.modify(duo.a.nic, duo.a.number, &init).unwrap_err();
    assert_eq!(error.code, 22);
}

#[test]
fn reset_and_destroy_drop_outstanding_work_without_a_word() {
    for profile in connectable() {
        let mut duo = connected(profile);
        duo.fabric.cut(duo.a.nic, duo.b.nic);
        (1..=3).for_each(|wr_id| duo.write(wr_id, 0, 8));
        let number = duo.a.number;
        let dropped = Law::DroppedWork { nic: 0, number, pieces: 3 };
        let resets = matches!(profile.name, "strict" | "rxe" | "mlx5" | "erdma-rocev2");
        if resets {
            duo.modify(duo.a, QpState::Reset).expect("reset");
            assert_eq!(duo.ends(duo.a), [], "{}", profile.name);
            let laws = [Law::Reset { nic: 0, number }, dropped];
            assert_eq!(duo.fabric.take_broken_laws(), laws, "{}", profile.name);
        } else {
            duo.fabric.destroy_queue_pair(duo.a.nic, number).expect("destroyed");
            assert_eq!(duo.ends(duo.a), [], "{}", profile.name);
            assert_eq!(duo.fabric.take_broken_laws(), [dropped], "{}", profile.name);
        }
    }
}

/// Unpolled completions stay or go with their queue pair, by profile.
#[test]
fn unpolled_completions_follow_the_profile() {
    let finished = |profile| {
        let mut duo = connected(profile);
        (1..=3).for_each(|wr_id| duo.write(wr_id, 0, 8));
        duo.fabric.run();
        duo
    };
    for profile in connectable() {
        let mut duo = finished(profile);
        duo.fabric.destroy_queue_pair(duo.a.nic, duo.a.number).expect("destroyed");
        let kept = matches!(profile.name, "strict" | "rxe");
        assert_eq!(duo.ends(duo.a).len(), if kept { 3 } else { 0 }, "{} destroy", profile.name);

        let mut duo = finished(profile);
        duo.modify(duo.a, QpState::Reset).expect("returns 0");
        let kept = profile.name != "mlx5";
        assert_eq!(duo.ends(duo.a).len(), if kept { 3 } else { 0 }, "{} reset", profile.name);
    }
}

#[test]
fn numbers_are_born_again_at_once_after_a_cycle_or_never() {
    static SMALL_CYCLE: Profile =
        Profile { numbers: Numbers::Cycling { first: 5, count: 3 }, ..STRICT };
    let numbers = |profile: &'static Profile| {
        let mut fabric = Fabric::default();
        let nic = fabric.add_nic(profile);
        let kept = fabric.create_queue_pair(nic, 1, 1).expect("room");
        let mut given = vec![kept];
        for _ in 0..4 {
            let number = fabric.create_queue_pair(nic, 1, 1).expect("room");
            fabric.destroy_queue_pair(nic, number).expect("there");
            given.push(number);
        }
        fabric.crash(nic, Rebirth::GoesOn);
        given.push(fabric.create_queue_pair(nic, 1, 1).expect("room"));
        fabric.crash(nic, Rebirth::Anew);
        given.push(fabric.create_queue_pair(nic, 1, 1).expect("room"));
        given
    };
    assert_eq!(numbers(&STRICT), [1, 2, 2, 2, 2, 1, 1]);
    assert_eq!(numbers(&SMALL_CYCLE), [5, 6, 7, 6, 7, 5, 5]);
    assert_eq!(numbers(&RXE), [17, 18, 19, 20, 21, 22, 17]);
    assert_eq!(numbers(&MLX5), [0x40, 0x41, 0x42, 0x43, 0x44, 0x45, 0x40]);
    assert_eq!(numbers(&ERDMA_COMPAT), [1, 2, 3, 4, 5, 6, 1]);
}

/// An old key fails until the device restarts its keys, and then it hits.
#[test]
fn old_key_hits_after_a_device_restart() {
    for profile in connectable() {
        let mut duo = connected(profile);
        duo.fabric.deregister(duo.b.nic, duo.b.keys).expect("there");
        let again = |duo: &mut Duo| {
            duo.fabric.register(duo.b.nic, BASE, vec![0; SIZE], Access::ALL).expect("room")
        };
        assert_ne!(again(&mut duo), duo.b.keys, "{}", profile.name);
        duo.fabric.crash(duo.b.nic, Rebirth::Anew);
        assert_eq!(again(&mut duo), duo.b.keys, "{}", profile.name);
    }
}

/// On eRDMA a stale peer that sent nothing cannot be distinguished from the right one.
#[test]
fn erdma_cannot_detect_a_stale_silent_peer() {
    for profile in connectable() {
        let mut duo = connected(profile);
        duo.fabric.crash(duo.b.nic, Rebirth::Anew);
        duo.b.keys =
            duo.fabric.register(duo.b.nic, BASE, vec![0xbb; SIZE], Access::ALL).expect("room");
        assert_eq!(duo.create(duo.b.nic), duo.b.number);
        let (a, b) = (duo.a, duo.b);
        connect(&mut duo.fabric, b, a, 7_000, 8_000).expect("connected by what it remembers of us");
        duo.write(1, 0, 8);
        duo.fabric.run();
        let ignored = profile.psn_source == PsnSource::Constant;
        assert_eq!(duo.at_b(0, 8) == [0xaa; 8], ignored, "{}", profile.name);
    }
}
