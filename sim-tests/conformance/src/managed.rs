//! Scenarios of the connection manager: the calls of librdmacm on two devices, and their events.

#[cfg(feature = "verbs")]
mod kernel;
mod simulated;

use crate::arm::{Outcome, Side};
use crate::player::{PlayError, errno};
use crate::recording::Recording;
use crate::scenario::{Chapter, chapter};
use crate::words::{Words, Wrong};
use handfast_transport_sim::verbs::QpState;

#[cfg(feature = "verbs")]
pub use kernel::ManagedKernel;
pub use simulated::ManagedSimulated;

/// Name of the listening identifier.
const LISTENER: &str = "listener";
/// Requests that wait at a listening identifier, unless a scenario says otherwise.
const BACKLOG: i32 = 16;
/// `errno` of a dial that ends within the call.
const ECONNREFUSED: i32 = 111;

/// An observation on a kernel's devices that differs from the simulated one.
#[derive(Clone, Copy, Debug)]
pub struct ManagedDifference {
    /// The driver of the devices: `siw` or `rxe`.
    pub driver: &'static str,
    /// The scenario.
    pub scenario: &'static str,
    /// The step and the kernel's observation.
    pub line: &'static str,
    /// The reason.
    pub cause: &'static str,
}

/// All of them. A test fails when one is no longer there.
pub const MANAGED_DIFFERENCES: &[ManagedDifference] = &[
    siw("accepted-with-private-data", "A state d -> RESET", SAYS_RESET),
    siw("accepted-with-private-data", "B state r -> RESET", SAYS_RESET),
    siw("rejected-with-a-reason", "A state d -> RESET", SAYS_RESET),
    siw("dialled-again-with-a-fresh-queue-pair", "A state e -> RESET", SAYS_RESET),
    siw("dialled-again-with-a-fresh-queue-pair", "B state s -> RESET", SAYS_RESET),
    siw("private-data-too-long", "A connect d bytes=57 -> 0", ROOM_FOR_MORE),
    ManagedDifference {
        driver: "rxe",
        scenario: "backlog-is-full",
        line: "A event e -> none",
        cause: "The kernel drops what a full listener does not take, and the dialler repeats it for minutes.",
    },
];

const SAYS_RESET: &str = "The driver reports RESET for a queue pair in any state.";
const ROOM_FOR_MORE: &str =
    "A request of iWARP has room for more than those of InfiniBand and RoCE.";

const fn siw(scenario: &'static str, line: &'static str, cause: &'static str) -> ManagedDifference {
    ManagedDifference { driver: "siw", scenario, line, cause }
}

/// An event of an identifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Its kind, as `rdma_cma.h` names it.
    pub kind: &'static str,
    /// The private data, as far as they are not zero at the end: RoCE fills them up.
    pub data: Vec<u8>,
}

/// The operations of a connection manager on two devices. A call returns 0 or the value of errno. Identifiers
/// have names, which are unique for a side.
pub trait ManagerArm {
    /// Listens at a port of the side's device.
    fn listen(&mut self, side: Side, name: &str, backlog: i32) -> Outcome<i32>;
    /// Creates an identifier and looks for the address of the peer, or of nobody.
    fn resolve(&mut self, side: Side, name: &str, is_nobody: bool) -> Outcome<i32>;
    /// Looks for the route.
    fn route(&mut self, side: Side, name: &str) -> Outcome<i32>;
    /// Dials with a fresh queue pair, or the identifier's if it has one.
    fn connect(&mut self, side: Side, name: &str, data: &[u8]) -> Outcome<i32>;
    /// Accepts a request with a fresh queue pair.
    fn accept(&mut self, side: Side, name: &str, data: &[u8]) -> Outcome<i32>;
    /// Rejects a request.
    fn reject(&mut self, side: Side, name: &str, data: &[u8]) -> Outcome<i32>;
    /// Disconnects.
    fn disconnect(&mut self, side: Side, name: &str) -> Outcome<i32>;
    /// Destroys an identifier, and then its queue pair.
    fn end(&mut self, side: Side, name: &str) -> Outcome<i32>;
    /// Waits for the next request at the side and names it; `None` if none comes.
    fn request(&mut self, side: Side, name: &str) -> Outcome<Option<Vec<u8>>>;
    /// Waits for the next event of an identifier; `None` if none comes.
    fn event(&mut self, side: Side, name: &str) -> Outcome<Option<Told>>;
    /// The state of an identifier's queue pair.
    fn state(&mut self, side: Side, name: &str) -> Outcome<QpState>;
    /// Cuts the way between the two devices, or mends it.
    fn cut(&mut self, is_cut: bool) -> Outcome<()>;
    /// Waits until what was sent has arrived.
    fn settle(&mut self) -> Outcome<()>;
}

/// The scenarios of the connection manager.
///
/// # Panics
/// Panics if the built-in file is malformed.
pub fn managed_chapter() -> Chapter {
    let text = include_str!("../scenarios/managed.txt");
    chapter(text).unwrap_or_else(|error| panic!("{error}"))
}

/// Plays the named scenarios of the connection manager, or all, each on a fabric of its own.
///
/// # Errors
/// The first scenario that cannot be played.
pub fn record_managed<M: ManagerArm>(
    title: String,
    names: &[String],
    fabric: impl Fn() -> Outcome<M>,
) -> Result<Recording, PlayError> {
    let mut played = Vec::new();
    for scenario in managed_chapter().scenarios {
        if !names.is_empty() && !names.contains(&scenario.name) {
            continue;
        }
        let error = |step: &str, cause: String| PlayError {
            scenario: scenario.name.clone(),
            step: step.to_owned(),
            cause,
        };
        let mut arm = fabric().map_err(|cause| error("opening the devices", cause.to_string()))?;
        let mut lines = Vec::new();
        for step in &scenario.steps {
            play(&mut arm, step, &mut lines).map_err(|cause| error(step, cause))?;
        }
        played.push((scenario.name.clone(), lines));
    }
    Ok(Recording { title, played })
}

/// Plays a step, or those that it stands for.
fn play<M: ManagerArm>(arm: &mut M, line: &str, lines: &mut Vec<String>) -> Result<(), Wrong> {
    let mut words = Words::of(line);
    match words.next()? {
        "settle" => arm.settle()?,
        "cut" => arm.cut(true)?,
        "mend" => arm.cut(false)?,
        whole @ ("request" | "dial") => {
            let (dials, waits) = (words.next()?, words.next()?);
            let data = words.named("data").map_or(String::new(), |data| format!(" data={data}"));
            let requested = [
                format!("A resolve {dials}"),
                format!("A event {dials}"),
                format!("A route {dials}"),
                format!("A event {dials}"),
                format!("A connect {dials}{data}"),
                format!("B request {waits}"),
            ];
            let accepted = [
                format!("B accept {waits}"),
                format!("A event {dials}"),
                format!("B event {waits}"),
            ];
            let accepted = accepted.iter().filter(|_| whole == "dial");
            requested.iter().chain(accepted).try_for_each(|step| play(arm, step, lines))?;
        }
        side @ ("A" | "B") => {
            let side = if side == "A" { Side::A } else { Side::B };
            let observed = of_side(arm, side, &mut words)?;
            lines.push(format!("{line} -> {observed}"));
        }
        other => return Err(format!("no step is '{other}'")),
    }
    words.finish()
}

fn of_side<M: ManagerArm>(arm: &mut M, side: Side, words: &mut Words<'_>) -> Result<String, Wrong> {
    let call = words.next()?;
    if call == "listen" {
        let backlog = words.number_or("backlog", BACKLOG)?;
        return Ok(errno(arm.listen(side, LISTENER, backlog)?));
    }
    let name = words.next()?;
    let data = match (words.named("data"), words.named("bytes")) {
        (Some(data), _) => data.as_bytes().to_vec(),
        (None, Some(count)) => {
            let count = count.parse().map_err(|_| format!("'{count}' is no number"))?;
            vec![b'x'; count]
        }
        (None, None) => Vec::new(),
    };
    let code = match call {
        "resolve" => {
            let is_nobody = words.named("to") == Some("nobody");
            arm.resolve(side, name, is_nobody)?
        }
        "route" => arm.route(side, name)?,
        "connect" => arm.connect(side, name, &data)?,
        "accept" => arm.accept(side, name, &data)?,
        "reject" => arm.reject(side, name, &data)?,
        "disconnect" => arm.disconnect(side, name)?,
        "end" => arm.end(side, name)?,
        "request" => {
            let request = arm.request(side, name)?;
            return Ok(request.map_or("none".to_owned(), |data| written("requested", &data)));
        }
        "event" => {
            let told = arm.event(side, name)?;
            return Ok(told.map_or("none".to_owned(), |told| written(told.kind, &told.data)));
        }
        "accepts-late" => {
            // The end of the request may be known before the call, which fails on iWARP, or follow it.
            let is_established = match arm.accept(side, name, &data)? {
                0 => arm.event(side, name)?.is_some_and(|told| told.kind == "ESTABLISHED"),
                _ => false,
            };
            return Ok(if is_established { "established" } else { "refused" }.to_owned());
        }
        "dials-nobody" => {
            // Soft-iWARP connects TCP within the call; elsewhere an event follows it.
            let is_refused = match arm.connect(side, name, &data)? {
                0 => arm.event(side, name)?.is_some_and(|told| told.kind == "REJECTED"),
                code => code == ECONNREFUSED,
            };
            return Ok(if is_refused { "refused" } else { "not refused" }.to_owned());
        }
        "state" => return Ok(format!("{:?}", arm.state(side, name)?).to_uppercase()),
        other => return Err(format!("no call is '{other}'")),
    };
    Ok(errno(code))
}

/// An event in words.
fn written(kind: &str, data: &[u8]) -> String {
    let text = String::from_utf8_lossy(data);
    match (data.len(), data.first()) {
        (0, _) => kind.to_owned(),
        (count @ 9.., Some(first)) if data.iter().all(|byte| byte == first) => {
            format!("{kind} data={} x{count}", char::from(*first))
        }
        _ => format!("{kind} data={text}"),
    }
}

/// Private data without the zeroes at its end.
fn trimmed(mut data: Vec<u8>) -> Vec<u8> {
    while data.last() == Some(&0) {
        data.pop();
    }
    data
}

/// Plays every scenario of the connection manager on simulated devices.
///
/// # Errors
/// The first scenario that cannot be played.
pub fn record_managed_simulated() -> Result<Recording, PlayError> {
    let title = "the simulated connection manager".to_owned();
    record_managed(title, &[], || Ok(ManagedSimulated::default()))
}

/// Plays the named scenarios of the connection manager, or all, on two devices behind librdmacm: the
/// kernel's, or those of a scripted process. Each device is named with an address of it.
///
/// # Errors
/// The first scenario that cannot be played, for example without such devices.
#[cfg(feature = "verbs")]
pub fn record_managed_kernel(
    title: String,
    names: &[String],
    devices: [(&str, std::net::IpAddr); 2],
) -> Result<Recording, PlayError> {
    record_managed(title, names, || ManagedKernel::open(devices))
}
