//! Tests of the machine, and an exploration of every order of two processes' steps.

use super::*;
use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;

const KEY: u64 = 7;
const BYTES: u64 = 100;
const OFFERED: Offered = Offered { address: 1_000, bytes: BYTES, readable: true, writable: true };

/// A deliberate mistake in the code around the machines.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Mistake {
    None,
    /// Memory is given back with the revocation, before the answer.
    ReleaseAtRevocation,
    /// A copy is reported as ended before its last piece.
    EndBeforeLastPiece,
    /// A closed connection is taken for the death of the process.
    HangUpIsDeath,
    /// A stopped process is taken for a dead one.
    StopIsDeath,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Step {
    Begin,
    Piece,
    End,
    ToInitiator,
    ToOwner,
    Unregister,
    CloseOwner,
    CloseInitiator,
    Stop,
    Continue,
    Kill,
    HangUp,
    LearnHangUp,
    LearnDeath,
}

/// The owner of a region, an initiator that copies to it, and what lies between them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct World {
    owner: Sharing,
    initiator: Sharing,
    to_initiator: VecDeque<Frame>,
    to_owner: VecDeque<Frame>,
    /// Pieces left of the copy under way, its grant, and whether it was reported as ended.
    copy: Option<(u8, GrantId, bool)>,
    mapped: BTreeSet<GrantId>,
    given: BTreeSet<GrantId>,
    begun: u8,
    registered: bool,
    owner_closed: bool,
    initiator_closed: bool,
    stopped: bool,
    stops: u8,
    alive: bool,
    hung_up: bool,
    learnt: (bool, bool),
    /// The region has another use: a write to it is a corruption.
    reused: bool,
    late: bool,
}

impl World {
    fn new() -> Self {
        Self {
            owner: Sharing::new(),
            initiator: Sharing::new(),
            to_initiator: VecDeque::new(),
            to_owner: VecDeque::new(),
            copy: None,
            mapped: BTreeSet::new(),
            given: BTreeSet::new(),
            begun: 0,
            registered: true,
            owner_closed: false,
            initiator_closed: false,
            stopped: false,
            stops: 0,
            alive: true,
            hung_up: false,
            learnt: (false, false),
            reused: false,
            late: false,
        }
    }

    fn steps(&self) -> Vec<Step> {
        let runs = self.alive && !self.stopped;
        let is_copying = self.copy.is_some();
        let pieces_left = self.copy.is_some_and(|(left, ..)| left > 0);
        let all = [
            (runs && !is_copying && self.begun < 2, Step::Begin),
            (runs && pieces_left, Step::Piece),
            (runs && is_copying, Step::End),
            (runs && !self.hung_up && !self.to_initiator.is_empty(), Step::ToInitiator),
            (!self.to_owner.is_empty() && !self.learnt.0, Step::ToOwner),
            (self.registered, Step::Unregister),
            (!self.owner_closed, Step::CloseOwner),
            (runs && !self.initiator_closed, Step::CloseInitiator),
            (runs && self.stops < 1, Step::Stop),
            (self.alive && self.stopped, Step::Continue),
            (self.alive, Step::Kill),
            (runs && !self.hung_up, Step::HangUp),
            (self.hung_up && !self.learnt.0, Step::LearnHangUp),
            (!self.alive && !self.learnt.1, Step::LearnDeath),
        ];
        all.into_iter().filter_map(|(can, step)| can.then_some(step)).collect()
    }

    fn take(&mut self, step: Step, mistake: Mistake) {
        match step {
            Step::Begin => self.begin(),
            Step::Piece => self.piece(mistake),
            Step::End => self.end(),
            Step::ToInitiator => {
                let frame = self.to_initiator.pop_front().unwrap();
                self.initiator.handle_frame(frame);
            }
            Step::ToOwner => {
                let frame = self.to_owner.pop_front().unwrap();
                self.owner.handle_frame(frame);
            }
            Step::Unregister => {
                self.registered = false;
                self.owner.revoke(KEY);
            }
            Step::CloseOwner => {
                self.owner_closed = true;
                self.owner.close();
            }
            Step::CloseInitiator => {
                self.initiator_closed = true;
                self.initiator.close();
            }
            Step::Stop => {
                (self.stopped, self.stops) = (true, self.stops + 1);
                if mistake == Mistake::StopIsDeath {
                    self.owner.on_peer_dead();
                }
            }
            Step::Continue => self.stopped = false,
            Step::Kill => {
                (self.alive, self.hung_up) = (false, true);
                (self.copy, self.mapped) = (None, BTreeSet::new());
            }
            Step::HangUp => self.hung_up = true,
            Step::LearnHangUp => {
                self.learnt.0 = true;
                match mistake {
                    Mistake::HangUpIsDeath => self.owner.on_peer_dead(),
                    _ => self.owner.on_hung_up(),
                }
            }
            Step::LearnDeath => {
                self.learnt.1 = true;
                self.owner.on_peer_dead();
            }
        }
        self.drain(mistake);
    }

    fn begin(&mut self) {
        let wanted = Wanted { key: KEY, address: 1_010, length: 90, direction: Direction::Write };
        if let Begun::Copy { grant, offset } = self.initiator.begin(&wanted) {
            assert_eq!(offset, 10);
            assert!(self.mapped.contains(&grant), "a copy uses a map that is there");
            (self.copy, self.begun) = (Some((2, grant, false)), self.begun + 1);
        }
    }

    fn piece(&mut self, mistake: Mistake) {
        let Some((left, grant, mut reported)) = self.copy else { return };
        self.late |= self.reused;
        if mistake == Mistake::EndBeforeLastPiece && left == 2 {
            self.initiator.end(grant);
            reported = true;
        }
        self.copy = Some((left - 1, grant, reported));
    }

    fn end(&mut self) {
        if let Some((_, grant, reported)) = self.copy.take()
            && !reported
        {
            assert!(self.mapped.contains(&grant), "a map stays until its copies have ended");
            self.initiator.end(grant);
        }
    }

    fn drain(&mut self, mistake: Mistake) {
        while let Some(output) = self.owner.poll_output() {
            match output {
                SharingOutput::Send(frame) => {
                    self.to_initiator.push_back(frame);
                    if mistake == Mistake::ReleaseAtRevocation
                        && let Frame::Revoke { grant } = frame
                    {
                        self.given.remove(&grant);
                        self.reused = true;
                    }
                }
                SharingOutput::Asked { key } if self.registered => {
                    self.given.extend(self.owner.grant(key, OFFERED));
                }
                SharingOutput::Asked { key } => self.owner.deny(key, Denial::UnknownKey),
                SharingOutput::Release { grant } => {
                    assert!(
                        self.given.remove(&grant) || mistake == Mistake::ReleaseAtRevocation,
                        "a grant is released once"
                    );
                }
                SharingOutput::Ended => {
                    assert_eq!(self.given, BTreeSet::new(), "nothing stays after the end");
                }
                _ => {}
            }
        }
        self.reused |= !self.registered && self.given.is_empty();
        while let Some(output) = self.initiator.poll_output() {
            match output {
                SharingOutput::Send(frame) => self.to_owner.push_back(frame),
                SharingOutput::Map { grant, .. } => {
                    self.mapped.insert(grant);
                    self.initiator.on_mapped(grant, true);
                }
                SharingOutput::Unmap { grant } => {
                    assert!(self.mapped.remove(&grant), "a map goes once");
                }
                _ => {}
            }
        }
    }

    /// Whether memory is kept although every process that could touch it let it go.
    fn is_stuck(&self) -> bool {
        let is_quiet = self.to_owner.is_empty()
            && (self.to_initiator.is_empty() || self.hung_up)
            && (self.learnt.0 || !self.hung_up)
            && (self.learnt.1 || self.alive);
        let is_let_go = !self.alive || (!self.stopped && self.copy.is_none() && !self.hung_up);
        let wants = !self.registered || self.owner_closed || self.initiator_closed;
        is_quiet && is_let_go && wants && !self.given.is_empty()
    }
}

/// Visits every world, and returns their number, and whether one of them is bad.
fn explore(mistake: Mistake) -> (usize, bool) {
    let mut seen = BTreeSet::from([World::new()]);
    let mut open = vec![World::new()];
    while let Some(world) = open.pop() {
        if world.late || world.is_stuck() {
            return (seen.len(), true);
        }
        for step in world.steps() {
            let mut next = world.clone();
            next.take(step, mistake);
            if seen.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    (seen.len(), false)
}

/// Memory has another use only after the last write to it, in every order of the steps of both
/// processes; and it has one once all that could write it let it go.
#[test]
fn memory_is_given_back_after_the_last_write() {
    let (worlds, is_bad) = explore(Mistake::None);
    assert!(!is_bad, "after {worlds} worlds");
    assert!(worlds > 5_000, "{worlds} worlds are too few to mean anything");
}

/// Each mistake leads to a late write that the exploration finds.
#[test]
fn mistakes_around_the_machine_are_found() {
    let mistakes = [
        Mistake::ReleaseAtRevocation,
        Mistake::EndBeforeLastPiece,
        Mistake::HangUpIsDeath,
        Mistake::StopIsDeath,
    ];
    for mistake in mistakes {
        assert!(explore(mistake).1, "{mistake:?} is not found");
    }
}

fn outputs(end: &mut Sharing) -> Vec<SharingOutput> {
    core::iter::from_fn(|| end.poll_output()).collect()
}

fn wanted(address: u64, length: u64, direction: Direction) -> Wanted {
    Wanted { key: KEY, address, length, direction }
}

fn mapped(offered: Offered) -> Sharing {
    let mut end = Sharing::new();
    assert_eq!(end.begin(&wanted(offered.address, 1, Direction::Read)), Begun::Asked);
    end.handle_frame(Frame::Grant { key: KEY, grant: GrantId(1), offered });
    end.on_mapped(GrantId(1), true);
    outputs(&mut end);
    end
}

/// A copy stays inside the region and its rights, at the edges of the address space too.
#[test]
fn copies_stay_within_the_grant() {
    let address = u64::MAX - BYTES;
    let offered = Offered { address, bytes: BYTES, readable: true, writable: false };
    let mut end = mapped(offered);
    let mut begin = |at, length, direction| end.begin(&wanted(at, length, direction));
    let no = Begun::Unshared(Unshared::NotAllowed);
    assert_eq!(
        begin(address, BYTES, Direction::Read),
        Begun::Copy { grant: GrantId(1), offset: 0 }
    );
    assert_eq!(begin(address, BYTES, Direction::Write), no);
    assert_eq!(begin(address - 1, 1, Direction::Read), no);
    assert_eq!(begin(address + 1, BYTES, Direction::Read), no);
    assert_eq!(begin(address + 1, u64::MAX, Direction::Read), no);
}

/// A batch is copied at once as a whole within its limits, or begins nothing and changes nothing: beyond
/// the grant, over a region that is not mapped, after its revocation and at the end of the channel.
#[test]
fn batch_at_once_begins_whole_or_not_at_all() {
    let bytes = AT_ONCE_BYTES_MAX;
    let mut end = mapped(Offered { bytes: bytes + 1, ..OFFERED });
    let of = |length| wanted(1_000, length, Direction::Write);
    let mut copies = Vec::new();
    let refused = |end: &mut Sharing, batch: &[Wanted]| {
        let before = end.clone();
        assert!(!end.begin_at_once(batch.iter().copied(), &mut Vec::new()));
        assert_eq!(*end, before, "nothing has begun, and no region is asked for");
    };
    refused(&mut end, &[]);
    refused(&mut end, &[of(bytes + 1)]);
    refused(&mut end, &vec![of(1); AT_ONCE_REQUESTS_MAX + 1]);
    refused(&mut end, &[of(1), Wanted { key: KEY + 1, ..of(1) }]);
    refused(&mut end, &[of(1), wanted(999, 2, Direction::Write)]);
    assert!(end.begin_at_once(vec![of(1); AT_ONCE_REQUESTS_MAX], &mut copies));
    assert_eq!((copies.len(), end.copying()), (AT_ONCE_REQUESTS_MAX, 64));
    assert!(copies.iter().all(|copy| *copy == (GrantId(1), 0)), "{copies:?}");
    end.handle_frame(Frame::Revoke { grant: GrantId(1) });
    assert_eq!(outputs(&mut end), [], "its copies are under way");
    refused(&mut end, &[of(1)]);
    copies.iter().for_each(|(grant, _)| end.end(*grant));
    let grant = GrantId(1);
    let released = [SharingOutput::Unmap { grant }, SharingOutput::Send(Frame::Revoked { grant })];
    assert_eq!(outputs(&mut end), released);

    let mut end = mapped(OFFERED);
    assert!(end.begin_at_once([of(1), wanted(1_003, 1, Direction::Write)], &mut copies));
    assert_eq!(copies, [0, 3].map(|offset| (GrantId(1), offset)));
    end.handle_frame(Frame::Close);
    refused(&mut end, &[of(1)]);
}

/// A region is asked for once; slices that wait are called when the answer is there, and when it
/// never comes.
#[test]
fn waiting_slices_are_called_once() {
    let mut end = Sharing::new();
    let one = wanted(OFFERED.address, 1, Direction::Write);
    assert_eq!((end.begin(&one), end.begin(&one)), (Begun::Asked, Begun::Asked));
    assert_eq!(outputs(&mut end), [SharingOutput::Send(Frame::Ask { key: KEY })]);
    end.handle_frame(Frame::Deny { key: KEY, denial: Denial::NotSharable });
    assert_eq!(outputs(&mut end), [SharingOutput::Answered { key: KEY }]);
    assert_eq!(end.begin(&one), Begun::Unshared(Unshared::Denied(Denial::NotSharable)));
    let mut end = Sharing::new();
    for _ in 0..2 {
        assert_eq!(end.begin(&one), Begun::Asked, "a key that was unknown is asked for again");
        end.handle_frame(Frame::Deny { key: KEY, denial: Denial::UnknownKey });
        assert_eq!(end.begin(&one), Begun::Unshared(Unshared::Denied(Denial::UnknownKey)));
    }
    let mut end = Sharing::new();
    end.begin(&one);
    outputs(&mut end);
    end.on_hung_up();
    let ended = [SharingOutput::Answered { key: KEY }, SharingOutput::Ended];
    assert_eq!(outputs(&mut end), ended);
}

/// At the limits neither table grows, and both sides learn of it.
#[test]
fn tables_have_their_limits() {
    let mut end = Sharing::new();
    for key in 0..GRANTS_MAX as u64 {
        assert!(end.grant(key, OFFERED).is_some());
    }
    outputs(&mut end);
    assert_eq!((end.grant(KEY, OFFERED), end.granted()), (None, GRANTS_MAX));
    let denied = Frame::Deny { key: KEY, denial: Denial::Full };
    assert_eq!(outputs(&mut end), [SharingOutput::Send(denied)]);
    for key in 0..MAPS_MAX as u64 {
        let one = Wanted { key, ..wanted(1, 1, Direction::Read) };
        assert_eq!(end.begin(&one), Begun::Asked);
    }
    let past = Wanted { key: MAPS_MAX as u64, ..wanted(1, 1, Direction::Read) };
    assert_eq!(end.begin(&past), Begun::Unshared(Unshared::Full));
}

/// Regions that were denied make room for others, whatever the reason: they do not end the sharing of a lane.
#[test]
fn denied_regions_make_room() {
    let staged = Denial::Staged(Staged::NotWhole);
    let denials = [Denial::NotSharable, staged, Denial::Full, Denial::System];
    let mut end = Sharing::new();
    let one = |key| Wanted { key, ..wanted(1, 1, Direction::Read) };
    for (key, denial) in (0..MAPS_MAX as u64).zip(denials.into_iter().cycle()) {
        assert_eq!(end.begin(&one(key)), Begun::Asked);
        end.handle_frame(Frame::Deny { key, denial });
    }
    assert_eq!(end.imports.len(), MAPS_MAX);
    assert_eq!(end.begin(&one(MAPS_MAX as u64)), Begun::Asked);
    assert!(end.imports.len() < MAPS_MAX);
}

/// A region that was denied for a reason that may pass is asked for again: the more denials of it came in a
/// row, the later. No copy waits for that answer: the other path needs none. The first that lasts ends the requests.
#[test]
fn denial_that_may_pass_is_asked_about_again() {
    let one = wanted(OFFERED.address, 1, Direction::Write);
    let asks = |end: &mut Sharing, denial| {
        assert_eq!(end.begin(&one), Begun::Unshared(Unshared::Denied(denial)));
        outputs(end).contains(&SharingOutput::Send(Frame::Ask { key: KEY }))
    };
    let copies_max = (1 << DENIALS_MAX) + 1;
    for denial in [Denial::Full, Denial::System] {
        let mut end = Sharing::new();
        assert_eq!(end.begin(&one), Begun::Asked);
        for denials in 0..DENIALS_MAX + 3 {
            end.handle_frame(Frame::Deny { key: KEY, denial });
            outputs(&mut end);
            let refused = (0..copies_max).position(|_| asks(&mut end, denial));
            assert_eq!(refused, Some(1 << denials.min(DENIALS_MAX)));
            assert!(!asks(&mut end, denial), "it is asked once");
        }
        end.handle_frame(Frame::Grant { key: KEY, grant: GrantId(1), offered: OFFERED });
        end.on_mapped(GrantId(1), true);
        assert_eq!(end.begin(&one), Begun::Copy { grant: GrantId(1), offset: 0 });
    }
    let mut end = Sharing::new();
    assert_eq!(end.begin(&one), Begun::Asked);
    end.handle_frame(Frame::Deny { key: KEY, denial: Denial::NotSharable });
    outputs(&mut end);
    assert!(!(0..copies_max).any(|_| asks(&mut end, Denial::NotSharable)));
}

/// The bytes of maps have a limit: past it a region is not mapped, and what goes makes room.
#[test]
fn mapped_bytes_have_their_limit() {
    let mut end = Sharing::new();
    let ask = |end: &mut Sharing, key, bytes| {
        let wanted = Wanted { key, ..wanted(OFFERED.address, 1, Direction::Read) };
        assert_eq!(end.begin(&wanted), Begun::Asked);
        let (grant, offered) = (GrantId(key), Offered { bytes, ..OFFERED });
        end.handle_frame(Frame::Grant { key, grant, offered });
        let is_mapped = outputs(end).contains(&SharingOutput::Map { key, grant, offered });
        if is_mapped {
            end.on_mapped(grant, true);
            outputs(end);
        }
        is_mapped
    };
    assert!(ask(&mut end, 1, MAPPED_BYTES_MAX - 8) && ask(&mut end, 2, 8));
    assert!(!ask(&mut end, 3, 1) && !ask(&mut end, 4, u64::MAX));
    let past = Wanted { key: 3, ..wanted(OFFERED.address, 1, Direction::Read) };
    assert_eq!(end.begin(&past), Begun::Unshared(Unshared::NotMapped));
    end.handle_frame(Frame::Revoke { grant: GrantId(2) });
    assert!(ask(&mut end, 5, 8));
}

/// A failed map goes back to the owner at once, and the region is asked for again: the more maps
/// failed in a row, the later. The first that succeeds ends the row.
#[test]
fn failed_map_is_tried_again() {
    let mut end = Sharing::new();
    let copy = wanted(OFFERED.address, 1, Direction::Write);
    let mut grants = (1..).map(GrantId);
    let mut answer = |end: &mut Sharing, is_mapped| {
        let grant = grants.next().unwrap();
        end.handle_frame(Frame::Grant { key: KEY, grant, offered: OFFERED });
        outputs(end);
        end.on_mapped(grant, is_mapped);
        outputs(end).contains(&SharingOutput::Send(Frame::Revoked { grant }))
    };
    let refused = |end: &mut Sharing| {
        let is_refused = |_: &u32| end.begin(&copy) == Begun::Unshared(Unshared::NotMapped);
        (0..=1 << FAILED_MAPS_MAX).take_while(is_refused).count()
    };
    assert_eq!(end.begin(&copy), Begun::Asked);
    for failed in 0..FAILED_MAPS_MAX + 3 {
        assert!(answer(&mut end, false), "the owner has the grant back");
        assert_eq!(refused(&mut end), 1 << failed.min(FAILED_MAPS_MAX));
    }
    assert!(!answer(&mut end, true));
    assert!(matches!(end.begin(&copy), Begun::Copy { .. }));
    assert_eq!(end.failed_maps, 0);
}

/// A map that is made while its grant is taken back goes before the answer.
#[test]
fn map_that_comes_too_late_goes_at_once() {
    let mut end = Sharing::new();
    end.begin(&wanted(OFFERED.address, 1, Direction::Write));
    end.handle_frame(Frame::Grant { key: KEY, grant: GrantId(1), offered: OFFERED });
    end.handle_frame(Frame::Revoke { grant: GrantId(1) });
    outputs(&mut end);
    end.on_mapped(GrantId(1), true);
    let expected = [
        SharingOutput::Unmap { grant: GrantId(1) },
        SharingOutput::Send(Frame::Revoked { grant: GrantId(1) }),
        SharingOutput::Answered { key: KEY },
    ];
    assert_eq!(outputs(&mut end), expected);
}

/// A failed copy leaves doubt only while a thread may still copy, and an owner only while a peer
/// may still write.
#[test]
fn doubt_ends_with_the_copy() {
    assert_eq!(left_by(false, false), Remote::Untouched);
    assert_eq!(left_by(true, false), Remote::Fenced);
    assert_eq!(left_by(true, true), Remote::Indeterminate);
    let mut owner = Sharing::new();
    let read_only = owner.grant(1, Offered { writable: false, ..OFFERED }).unwrap();
    let writable = owner.grant(2, OFFERED).unwrap();
    assert_eq!(owner.owned_state(read_only), Remote::Untouched);
    owner.revoke(2);
    owner.on_hung_up();
    assert_eq!(owner.owned_state(writable), Remote::Indeterminate);
    assert!(owner.is_unproven() && !owner.has_ended());
    owner.on_peer_dead();
    assert_eq!(owner.owned_state(writable), Remote::Fenced);
    assert!(!owner.is_unproven() && owner.has_ended());
}

/// A grant named twice would be two regions, and a key granted twice a table without a limit: both
/// end the channel, after the copies of this end.
#[test]
fn grant_named_twice_ends_the_channel() {
    let mut end = mapped(OFFERED);
    end.begin(&Wanted { key: KEY + 1, ..wanted(OFFERED.address, 1, Direction::Write) });
    let one = wanted(OFFERED.address, 1, Direction::Write);
    assert_eq!(end.begin(&one), Begun::Copy { grant: GrantId(1), offset: 0 });
    outputs(&mut end);
    end.handle_frame(Frame::Grant { key: KEY + 1, grant: GrantId(1), offered: OFFERED });
    let closing = [SharingOutput::Send(Frame::Close), SharingOutput::Answered { key: KEY + 1 }];
    assert_eq!(outputs(&mut end), closing);
    end.handle_frame(Frame::Revoke { grant: GrantId(1) });
    assert_eq!(outputs(&mut end), []);
    end.end(GrantId(1));
    let gone = outputs(&mut end);
    assert_eq!(gone[0], SharingOutput::Unmap { grant: GrantId(1) });
    assert!(gone.contains(&SharingOutput::Send(Frame::Closed)), "{gone:?}");
    assert!(end.has_ended() && !end.is_over(), "the peer's last words are awaited");
    end.handle_frame(Frame::Closed);
    assert!(end.is_over());
    let mut owner = Sharing::new();
    owner.handle_frame(Frame::Ask { key: KEY });
    let grant = owner.grant(KEY, OFFERED).unwrap();
    owner.revoke(KEY);
    owner.handle_frame(Frame::Ask { key: KEY });
    assert!(!owner.is_closing(), "a key is asked for again after a revocation");
    owner.grant(KEY, OFFERED).unwrap();
    owner.handle_frame(Frame::Ask { key: KEY });
    assert!(owner.is_closing() && owner.granted() == 2);
    owner.handle_frame(Frame::Revoked { grant });
    assert_eq!(owner.granted(), 1);
}

/// No order of frames makes the machine panic, lose a copy or grow past its limits.
#[test]
fn hostile_frames_do_not_panic() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    for _ in 0..2_000 {
        let mut end = Sharing::new();
        let mut copies = Vec::new();
        let mut mapped = BTreeSet::new();
        for _ in 0..100 {
            let (key, grant) = (random(4), GrantId(random(6)));
            match random(12) {
                0 => end.handle_frame(Frame::Ask { key }),
                1..=3 => end.handle_frame(Frame::Grant { key, grant, offered: OFFERED }),
                4 => end.handle_frame(Frame::Deny { key, denial: Denial::UnknownKey }),
                5 => end.handle_frame(Frame::Revoke { grant }),
                6 => end.handle_frame(Frame::Revoked { grant }),
                7 if random(20) == 0 => end.handle_frame(Frame::Close),
                7 if random(20) == 0 => end.handle_frame(Frame::Closed),
                7 => end.revoke(key),
                8 if !copies.is_empty() => {
                    end.end(copies.swap_remove(random(copies.len() as u64) as usize));
                }
                _ => {
                    let one = Wanted { key, ..wanted(OFFERED.address, 1, Direction::Write) };
                    if let Begun::Copy { grant, .. } = end.begin(&one) {
                        assert!(mapped.contains(&grant));
                        copies.push(grant);
                    }
                }
            }
            while let Some(output) = end.poll_output() {
                match output {
                    SharingOutput::Asked { key } => drop(end.grant(key, OFFERED)),
                    SharingOutput::Map { grant, .. } => {
                        let is_mapped = random(4) > 0;
                        assert!(!is_mapped || mapped.insert(grant), "mapped twice");
                        end.on_mapped(grant, is_mapped);
                    }
                    SharingOutput::Unmap { grant } => {
                        assert!(mapped.remove(&grant) && !copies.contains(&grant));
                    }
                    _ => {}
                }
            }
            assert_eq!(end.copying() as usize, copies.len());
        }
        copies.drain(..).for_each(|grant| end.end(grant));
        end.on_peer_dead();
        assert!(end.has_ended() && end.is_over());
    }
}

/// Two mapped regions of an initiator, its outputs drained.
fn initiator_of_two() -> Sharing {
    let mut machine = Sharing::new();
    for number in 1..=2 {
        let wanted = Wanted { key: number, address: 1_000, length: 1, direction: Direction::Write };
        assert_eq!(machine.begin(&wanted), Begun::Asked);
        machine.handle_frame(Frame::Grant {
            key: number,
            grant: GrantId(number),
            offered: OFFERED,
        });
        machine.on_mapped(GrantId(number), true);
    }
    while machine.poll_output().is_some() {}
    machine
}

/// The frames that an initiator sends, of whose maps one leaves something.
fn said(machine: &mut Sharing, kept: GrantId) -> Vec<Frame> {
    let mut said = Vec::new();
    while let Some(output) = machine.poll_output() {
        match output {
            SharingOutput::Unmap { grant } if grant == kept => machine.on_kept(grant),
            SharingOutput::Send(frame) => said.push(frame),
            _ => {}
        }
    }
    said
}

/// A region of which something stays in reach is named in the place of its acknowledgement, and before the
/// end of the channel, which acknowledges the others.
#[test]
fn kept_region_is_named_and_not_acknowledged() {
    for number in 1..=2 {
        let kept = GrantId(number);
        let mut machine = initiator_of_two();
        machine.handle_frame(Frame::Revoke { grant: kept });
        assert_eq!(said(&mut machine, kept), [Frame::Kept { grant: kept }]);
        machine.close();
        assert_eq!(said(&mut machine, kept), [Frame::Close, Frame::Closed]);
        let mut machine = initiator_of_two();
        machine.close();
        assert_eq!(
            said(&mut machine, kept),
            [Frame::Close, Frame::Kept { grant: kept }, Frame::Closed]
        );
    }
    let mut machine = Sharing::new();
    machine.begin(&Wanted { key: 1, address: 1_000, length: 1, direction: Direction::Write });
    machine.handle_frame(Frame::Grant { key: 1, grant: GrantId(1), offered: OFFERED });
    while machine.poll_output().is_some() {}
    machine.close();
    machine.on_mapped(GrantId(1), false);
    machine.on_kept(GrantId(1));
    let all = [Frame::Kept { grant: GrantId(1) }, Frame::Close, Frame::Closed];
    assert_eq!(said(&mut machine, GrantId(0)), all, "a map that failed with the region open");
}

/// An owner whose memory a peer keeps ends its channel once the memory is held apart, and never releases it;
/// without room there it waits for the death of the peer.
#[test]
fn kept_memory_ends_its_channel_when_it_is_moved() {
    for has_room in [true, false] {
        let mut owner = Sharing::new();
        owner.handle_frame(Frame::Ask { key: KEY });
        let grant = owner.grant(KEY, OFFERED).unwrap();
        while owner.poll_output().is_some() {}
        owner.handle_frame(Frame::Kept { grant });
        owner.handle_frame(Frame::Kept { grant });
        assert_eq!(owner.poll_output(), Some(SharingOutput::Keep { grant }));
        assert_eq!(owner.poll_output(), None, "it is named once");
        if has_room {
            owner.on_moved(grant);
        }
        assert_eq!(owner.owned_state(grant), Remote::Indeterminate);
        owner.close();
        owner.handle_frame(Frame::Closed);
        let released = |it: &SharingOutput| *it == SharingOutput::Release { grant };
        let outputs: Vec<_> = core::iter::from_fn(|| owner.poll_output()).collect();
        assert!(!outputs.iter().any(released), "{outputs:?}");
        assert_eq!(owner.has_ended(), has_room);
        owner.on_peer_dead();
        let outputs: Vec<_> = core::iter::from_fn(|| owner.poll_output()).collect();
        assert_eq!(outputs.iter().any(released), !has_room);
        assert!(owner.has_ended());
    }
}

/// A region that a peer keeps is not granted to it again, and counts as granted: a peer cannot fill the table
/// of all with one region.
#[test]
fn kept_region_is_granted_once() {
    let mut owner = Sharing::new();
    let mut grants = 0;
    for key in [KEY; 8].into_iter().chain(KEY + 1..KEY + GRANTS_MAX as u64 + 8) {
        owner.handle_frame(Frame::Ask { key });
        while let Some(output) = owner.poll_output() {
            match output {
                SharingOutput::Asked { key } => {
                    let Some(grant) = owner.grant(key, OFFERED) else { continue };
                    grants += 1;
                    owner.handle_frame(Frame::Kept { grant });
                }
                SharingOutput::Keep { grant } => owner.on_moved(grant),
                SharingOutput::Send(Frame::Deny { key: denied, denial }) => {
                    assert_eq!((denied, denial), (key, Denial::Full));
                }
                _ => {}
            }
        }
    }
    assert_eq!((grants, owner.granted()), (GRANTS_MAX, 0));
}

/// A region that stays in its channel while the peer keeps it, as memory of the host does, is not granted again either.
#[test]
fn region_kept_in_its_channel_is_granted_once() {
    let mut owner = Sharing::new();
    let mut grants = 0;
    for _ in 0..8 {
        owner.handle_frame(Frame::Ask { key: KEY });
        while let Some(output) = owner.poll_output() {
            if let SharingOutput::Asked { key } = output {
                let grant = owner.grant(key, OFFERED).unwrap();
                owner.handle_frame(Frame::Kept { grant });
                grants += 1;
            }
        }
    }
    assert_eq!((grants, owner.granted()), (1, 1));
}

/// A peer that hung up keeps its grants.
#[test]
fn hung_up_peer_keeps_its_grants() {
    let mut owner = Sharing::new();
    owner.handle_frame(Frame::Ask { key: KEY });
    let grant = owner.grant(KEY, OFFERED).unwrap();
    owner.handle_frame(Frame::Close);
    owner.on_hung_up();
    assert!(owner.is_unproven() && owner.owned_state(grant) == Remote::Indeterminate);
}
