//! Plays scenarios on a fabric and records the observations.

use crate::arm::{
    Address, ArmError, Change, Disturbance, Ended, Kind, Own, Place, Request, Side, Towards,
    VerbsArm, Wait,
};
use crate::scenario::Scenario;
use crate::words::{Words, Wrong, state};
use handfast_transport_sim::verbs::{Access, Attributes, QpState};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Default name of a queue pair and of a region.
const USUAL_PAIR: &str = "q";
const USUAL_REGION: &str = "r";
/// Default depth of each queue: one less than a power of two, to which drivers round up.
const USUAL_DEPTH: u32 = 15;
/// The content of the sides' regions.
const FILLS: [u8; 2] = [0xaa, 0xbb];
/// The first PSNs of the sides.
const PSNS: [u32; 2] = [1_000, 2_000];

/// A scenario that cannot be played.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{scenario}: '{step}': {cause}")]
pub struct PlayError {
    /// The scenario.
    pub scenario: String,
    /// Its step.
    pub step: String,
    /// The defect of the step or of the fabric.
    pub cause: String,
}

/// Plays a scenario and returns the observations: lines of `STEP -> OBSERVATION`.
///
/// # Errors
/// An invalid step, or a failure of the fabric outside of the observed calls.
pub fn play<V: VerbsArm>(scenario: &Scenario, arm: &mut V) -> Result<Vec<String>, PlayError> {
    let mut player = Player { arm, ids: Vec::new(), numbers: BTreeMap::new() };
    let error = |step: &str, cause: String| PlayError {
        scenario: scenario.name.clone(),
        step: step.to_owned(),
        cause,
    };
    for side in Side::ALL {
        player.usual_region(side).map_err(|cause| error("before the first step", cause))?;
    }
    let mut lines = Vec::new();
    for step in &scenario.steps {
        let observed = player.step(step).map_err(|cause| error(step, cause))?;
        if let Some(observed) = observed {
            lines.push(format!("{step} -> {observed}"));
        }
    }
    Ok(lines)
}

struct Player<'a, V> {
    arm: &'a mut V,
    /// Names and kinds of posted requests, by index.
    ids: Vec<(String, Kind)>,
    /// The last number of each named queue pair.
    numbers: BTreeMap<(Side, String), u32>,
}

type Observed = Result<Option<String>, Wrong>;

impl From<ArmError> for Wrong {
    fn from(error: ArmError) -> Self {
        error.to_string()
    }
}

impl<V: VerbsArm> Player<'_, V> {
    fn step(&mut self, line: &str) -> Observed {
        let mut words = Words::of(line);
        let observed = match words.next()? {
            "wait" => {
                self.wait(Wait::Arrival, |_| Ok(false))?;
                Ok(None)
            }
            "connect" => self.connect(&mut words),
            "A" => self.of_side(Side::A, &mut words),
            "B" => self.of_side(Side::B, &mut words),
            other => Err(format!("no step is '{other}'")),
        }?;
        words.finish()?;
        Ok(observed)
    }

    fn of_side(&mut self, side: Side, words: &mut Words<'_>) -> Observed {
        let result = |code| Ok(Some(errno(code)));
        match words.next()? {
            "create" => self.create(side, words).map(Some),
            "destroy" => {
                let pair = words.named_or("q", USUAL_PAIR);
                result(self.arm.destroy(side, pair)?)
            }
            "bring" => self.bring(side, words),
            "to" => self.to(side, words),
            "try" => self.attempt(side, words),
            "state" => {
                let pair = words.named_or("q", USUAL_PAIR);
                Ok(Some(self.arm.state(side, pair)?.to_string()))
            }
            "register" => {
                let fill = u8::from_str_radix(words.named_or("fill", "cc"), 16);
                let fill = fill.map_err(|error| error.to_string())?;
                let rights = words.rights()?.unwrap_or(Access::ALL);
                words.forget_settings();
                result(self.arm.register(side, words.next()?, fill, rights)?)
            }
            "deregister" => result(self.arm.deregister(side, words.next()?)?),
            "write" => self.post(side, Kind::Write, words),
            "read" => self.post(side, Kind::Read, words),
            "send" => self.post(side, Kind::Send, words),
            "receive" => self.receive(side, words),
            "ends" => self.ends(side, words),
            "quiet" => self.quiet(side).map(Some),
            "events" => self.events(side).map(Some),
            "bytes" => self.bytes(side, words),
            "fill" => {
                let (at, length): (usize, usize) = (words.next_number()?, words.next_number()?);
                let byte = u8::from_str_radix(words.next()?, 16);
                let bytes = vec![byte.map_err(|error| error.to_string())?; length];
                self.arm.fill(side, words.named_or("of", USUAL_REGION), at, &bytes)?;
                Ok(None)
            }
            "mtu" => Ok(Some(self.arm.port_mtu(side)?.to_string())),
            "completions" => {
                self.arm.limit_completions(side, words.next_number()?)?;
                // Earlier registrations are gone, since the device was reopened.
                self.usual_region(side)?;
                Ok(None)
            }
            "restart" => {
                self.arm.restart(side)?;
                self.usual_region(side)?;
                Ok(None)
            }
            other => self.disturb(side, other, words),
        }
    }

    fn disturb(&mut self, side: Side, what: &str, words: &mut Words<'_>) -> Observed {
        let disturbance = match what {
            "cut" => Disturbance::Cut,
            "mend" => Disturbance::Mend,
            "hold" => Disturbance::Hold,
            "release" => Disturbance::Release,
            "link" => match words.next()? {
                "down" => Disturbance::LinkDown,
                "up" => Disturbance::LinkUp,
                "mtu" => Disturbance::LinkMtu(words.next_number()?),
                other => return Err(format!("no link is '{other}'")),
            },
            "address" => match words.next()? {
                "leaves" => Disturbance::AddressLeaves,
                "returns" => Disturbance::AddressReturns,
                other => return Err(format!("no address '{other}'")),
            },
            other => return Err(format!("no step of a side is '{other}'")),
        };
        self.arm.disturb(side, disturbance)?;
        Ok(None)
    }

    fn usual_region(&mut self, side: Side) -> Result<(), Wrong> {
        let code = self.arm.register(side, USUAL_REGION, FILLS[side as usize], Access::ALL)?;
        if code == 0 { Ok(()) } else { Err(format!("registering memory returned {code}")) }
    }

    fn create(&mut self, side: Side, words: &mut Words<'_>) -> Result<String, Wrong> {
        let pair = words.named_or("q", USUAL_PAIR);
        let depths =
            (words.number_or("sends", USUAL_DEPTH)?, words.number_or("receives", USUAL_DEPTH)?);
        let code = self.arm.create(side, pair, depths)?;
        if code != 0 {
            return Ok(errno(code));
        }
        let number = self.arm.number(side, pair)?;
        Ok(match self.numbers.insert((side, pair.to_owned()), number) {
            None => "0".to_owned(),
            Some(before) if before == number => "0, with the number of before".to_owned(),
            Some(_) => "0, with another number".to_owned(),
        })
    }

    /// Requests a state with all attributes that the step needs.
    fn full(&mut self, side: Side, state: QpState, words: &mut Words<'_>) -> Result<Change, Wrong> {
        let mut address = None;
        let attributes = match state {
            QpState::Init => Attributes::to_init(Access::ALL),
            QpState::Rtr => {
                address =
                    Some(Address { port: 1, own: Own::Ipv4, to: Towards::Peer, is_global: true });
                Attributes {
                    dest_number: Some(self.destination(side, words)?),
                    path_mtu: Some(1_024),
                    rq_psn: Some(PSNS[side.peer() as usize]),
                    max_dest_rd_atomic: Some(16),
                    min_rnr_timer: Some(12),
                    ..Attributes::to(state)
                }
            }
            QpState::Rts => {
                Attributes { timeout: Some(16), ..Attributes::to_rts(PSNS[side as usize]) }
            }
            QpState::Reset | QpState::Sqd | QpState::Sqe | QpState::Err => Attributes::to(state),
        };
        let mut change = Change { attributes, address };
        words.settings(&mut change)?;
        Ok(change)
    }

    /// Returns the change requested by a step: all attributes, or with `bare` only the state.
    fn wanted(
        &mut self,
        side: Side,
        state: QpState,
        words: &mut Words<'_>,
    ) -> Result<Change, Wrong> {
        let mut change = Change { attributes: Attributes::to(state), address: None };
        if words.has("bare") {
            words.settings(&mut change)?;
        } else {
            change = self.full(side, state, words)?;
        }
        words.forget_settings();
        Ok(change)
    }

    /// Returns the peer's queue pair: by name, by a number after `#`, or by the default name.
    fn destination(&mut self, side: Side, words: &mut Words<'_>) -> Result<u32, Wrong> {
        let name = words.named_or("dest", USUAL_PAIR);
        match name.strip_prefix('#') {
            Some(number) => number.parse().map_err(|_| format!("'{number}' is no number")),
            None => Ok(self.arm.number(side.peer(), name)?),
        }
    }

    /// Creates a queue pair on both sides and moves them to RTS.
    fn connect(&mut self, words: &mut Words<'_>) -> Observed {
        for side in Side::ALL {
            let code = self.arm.create(side, USUAL_PAIR, (USUAL_DEPTH, USUAL_DEPTH))?;
            if code != 0 {
                return Ok(Some(format!("{side}: {}", errno(code))));
            }
            let number = self.arm.number(side, USUAL_PAIR)?;
            self.numbers.insert((side, USUAL_PAIR.to_owned()), number);
        }
        // B first, so that no packet of A arrives too early.
        for side in [Side::B, Side::A] {
            if let Some(refused) = self.walk(side, USUAL_PAIR, QpState::Rts, words)? {
                return Ok(Some(format!("{side}: {refused}")));
            }
        }
        words.forget_settings();
        Ok(None)
    }

    /// Moves from RESET to a state; returns the refused step, if any.
    fn walk(
        &mut self,
        side: Side,
        pair: &str,
        state: QpState,
        words: &mut Words<'_>,
    ) -> Result<Option<String>, Wrong> {
        let way: &[QpState] = match state {
            QpState::Reset => &[],
            QpState::Init => &[QpState::Init],
            QpState::Rtr => &[QpState::Init, QpState::Rtr],
            QpState::Rts => &[QpState::Init, QpState::Rtr, QpState::Rts],
            QpState::Sqd => &[QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd],
            QpState::Err => &[QpState::Init, QpState::Err],
            QpState::Sqe => return Err("no way leads to SQE".to_owned()),
        };
        for state in way {
            let change = self.full(side, *state, words)?;
            let code = self.arm.modify(side, pair, &change)?;
            if code != 0 {
                return Ok(Some(format!("{state}: {}", errno(code))));
            }
            self.settle(*state)?;
        }
        Ok(None)
    }

    /// A send queue takes a moment to drain after SQD, and some drivers refuse every step until
    /// then.
    fn settle(&mut self, state: QpState) -> Result<(), Wrong> {
        if state == QpState::Sqd { self.wait(Wait::Arrival, |_| Ok(false)) } else { Ok(()) }
    }

    fn bring(&mut self, side: Side, words: &mut Words<'_>) -> Observed {
        let wanted = state(words.next()?)?;
        let pair = words.named_or("q", USUAL_PAIR);
        let refused = self.walk(side, pair, wanted, words)?;
        words.forget_settings();
        Ok(refused)
    }

    fn to(&mut self, side: Side, words: &mut Words<'_>) -> Observed {
        let wanted = state(words.next()?)?;
        let pair = words.named_or("q", USUAL_PAIR);
        let change = self.wanted(side, wanted, words)?;
        let code = self.arm.modify(side, pair, &change)?;
        self.settle(wanted)?;
        Ok(Some(errno(code)))
    }

    /// Requests a state of a new queue pair in another state; returns the result and the final
    /// state.
    fn attempt(&mut self, side: Side, words: &mut Words<'_>) -> Observed {
        const PAIR: &str = "tried";
        let (from, wanted) = (state(words.next()?)?, state(words.next()?)?);
        let code = self.arm.create(side, PAIR, (USUAL_DEPTH, USUAL_DEPTH))?;
        if code != 0 {
            return Ok(Some(format!("create: {}", errno(code))));
        }
        let observed = match self.walk(side, PAIR, from, &mut Words::of(""))? {
            Some(refused) => refused,
            None => {
                let change = self.wanted(side, wanted, words)?;
                let code = self.arm.modify(side, PAIR, &change)?;
                format!("{}, in {}", errno(code), self.arm.state(side, PAIR)?)
            }
        };
        words.forget_settings();
        let code = self.arm.destroy(side, PAIR)?;
        Ok(Some(if code == 0 { observed } else { format!("{observed}, destroy {code}") }))
    }

    fn id(&mut self, label: &str, kind: Kind) -> u64 {
        self.ids.push((label.to_owned(), kind));
        self.ids.len() as u64 - 1
    }

    fn post(&mut self, side: Side, kind: Kind, words: &mut Words<'_>) -> Observed {
        let label = words.next()?;
        let place = |region: &str, at, key| Place { region: region.to_owned(), at, key };
        let local = words.named_or("local", USUAL_REGION);
        let local = place(local, words.number_or("from", 0)?, words.key("lkey")?);
        let remote = words.named_or("remote", USUAL_REGION);
        let remote = place(remote, words.number_or("at", 0)?, words.key("rkey")?);
        let (length, signalled) = (words.number_or("bytes", 8)?, !words.has("silent"));
        let pair = words.named_or("q", USUAL_PAIR);
        let id = self.id(label, kind);
        let request = Request { id, kind, local, remote, length, signalled };
        Ok(Some(errno(self.arm.post(side, pair, &request)?)))
    }

    fn receive(&mut self, side: Side, words: &mut Words<'_>) -> Observed {
        let label = words.next()?;
        let region = words.named_or("local", USUAL_REGION).to_owned();
        let place = Place { region, at: words.number_or("from", 0)?, key: words.key("lkey")? };
        let length = words.number_or("bytes", 8)?;
        let pair = words.named_or("q", USUAL_PAIR);
        let id = self.id(label, Kind::Receive);
        Ok(Some(errno(self.arm.post_receive(side, pair, id, &place, length)?)))
    }

    fn wait(
        &mut self,
        wait: Wait,
        mut enough: impl FnMut(&mut V) -> Result<bool, Wrong>,
    ) -> Result<(), Wrong> {
        let mut round = 0;
        while !enough(self.arm)? && self.arm.go_on(wait, round)? {
            round += 1;
        }
        Ok(())
    }

    fn ends(&mut self, side: Side, words: &mut Words<'_>) -> Observed {
        let count: usize = words.next_number()?;
        let ended = self.ended(side, Wait::Ends, count)?;
        let short = count.saturating_sub(ended.len());
        let mut listed = self.listed(&ended);
        if short > 0 {
            let _ = write!(listed, "; {short} missing");
        }
        Ok(Some(listed))
    }

    fn ended(&mut self, side: Side, wait: Wait, count: usize) -> Result<Vec<Ended>, Wrong> {
        let mut ended = Vec::new();
        self.wait(wait, |arm| {
            while let Some(end) = arm.poll(side)? {
                ended.push(end);
            }
            Ok(ended.len() >= count)
        })?;
        Ok(ended)
    }

    /// Formats completions in order of arrival, each queue separately.
    fn listed(&self, ended: &[Ended]) -> String {
        let of = |end: &Ended| {
            let unknown = ("unknown".to_owned(), Kind::Send);
            let place = usize::try_from(end.id).unwrap_or(usize::MAX);
            self.ids.get(place).cloned().unwrap_or(unknown)
        };
        let (receives, sends): (Vec<_>, Vec<_>) =
            ended.iter().partition(|end| of(end).1 == Kind::Receive);
        let one = |end: &&Ended| {
            let kind = end.kind.map(|kind| format!(" {}", kind.word())).unwrap_or_default();
            format!("{} {}{kind}", of(end).0, status(end.status))
        };
        let listed: Vec<String> = sends.iter().chain(&receives).map(one).collect();
        if listed.is_empty() { "none".to_owned() } else { listed.join(", ") }
    }

    fn quiet(&mut self, side: Side) -> Result<String, Wrong> {
        let ended = self.ended(side, Wait::Quiet, usize::MAX)?;
        Ok(self.listed(&ended))
    }

    fn events(&mut self, side: Side) -> Result<String, Wrong> {
        self.wait(Wait::Arrival, |_| Ok(false))?;
        let mut listed = Vec::new();
        while let Some(event) = self.arm.event(side)? {
            listed.push(event.to_string());
        }
        Ok(if listed.is_empty() { "none".to_owned() } else { listed.join(", ") })
    }

    fn bytes(&mut self, side: Side, words: &mut Words<'_>) -> Observed {
        let (at, length) = (words.next_number()?, words.next_number()?);
        let bytes = self.arm.bytes(side, words.named_or("of", USUAL_REGION), at, length)?;
        let runs = bytes.chunk_by(|one, other| one == other);
        let runs: Vec<_> = runs.map(|run| format!("{:02x} x{}", run[0], run.len())).collect();
        Ok(Some(runs.join(", ")))
    }
}

/// Formats a return value as errno's name.
pub(crate) fn errno(code: i32) -> String {
    match code {
        0 => "0",
        5 => "EIO",
        12 => "ENOMEM",
        14 => "EFAULT",
        16 => "EBUSY",
        22 => "EINVAL",
        28 => "ENOSPC",
        61 => "ENODATA",
        95 => "EOPNOTSUPP",
        97 => "EAFNOSUPPORT",
        101 => "ENETUNREACH",
        103 => "ECONNABORTED",
        110 => "ETIMEDOUT",
        113 => "EHOSTUNREACH",
        other => return format!("error {other}"),
    }
    .to_owned()
}

/// Formats a status, as numbered by rdma-core.
fn status(number: u32) -> String {
    match number {
        0 => "success",
        1 => "local length",
        2 => "local queue pair",
        4 => "local protection",
        5 => "flushed",
        7 => "bad response",
        8 => "local access",
        9 => "remote invalid",
        10 => "remote access",
        11 => "remote operation",
        12 => "retry exceeded",
        13 => "RNR exceeded",
        21 => "general",
        other => return format!("status {other}"),
    }
    .to_owned()
}
