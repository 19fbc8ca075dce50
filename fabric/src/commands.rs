//! Commands of a test: one line each, words separated by spaces. The second port of a device has the
//! device's name with `:2` behind it, where a command is of packets, addresses, completions, queue pairs
//! or a port.
//!
//! | command | effect |
//! | --- | --- |
//! | `hold packets FROM TO [writes]`, `release packets FROM TO` | packets of a path, or those of its writes, wait, and arrive in order |
//! | `held FROM TO` | number of the packets of a path that wait |
//! | `arrive DEVICE...` | held packets of the devices arrive, with all that they cause; `1` if any |
//! | `lose packets FROM TO` | held packets of a path are lost |
//! | `hold completions DEVICE [NUMBER]`, `release …` | completions wait, of a queue pair or of all |
//! | `fail completion DEVICE NUMBER STATUS` | the oldest held completion of a queue pair has another status |
//! | `hold events DEVICE`, `release events DEVICE` | asynchronous events wait |
//! | `hold call DEVICE CALL [after N]` | calls after the next N wait |
//! | `release call DEVICE CALL [CODE]` | waiting calls go on, or return the error |
//! | `release call DEVICE CALL CODE at N` | the same of the waiting call after N others; 0 is no error |
//! | `fail call DEVICE CALL CODE [after N] [times N]` | the call returns the error |
//! | `pass` | no call is held or fails any more |
//! | `fail request DEVICE NUMBER STATUS` | the oldest unanswered request ends with a status |
//! | `break DEVICE NUMBER` | the queue pair fails by itself |
//! | `expire DEVICE NUMBER`, `exhaust DEVICE NUMBER` | one try of its timer, or all |
//! | `expire DEVICE all` | one try of every timer that runs; `1` if any |
//! | `timers off`, `timers on` | no timer expires by itself, and no call waits for a neighbour |
//! | `renew` | everything is as at the start of the process; no program has a device open |
//! | `cut FROM TO`, `mend FROM TO` | a path loses its packets |
//! | `port DEVICE up`, `port DEVICE down` | the port's state |
//! | `event DEVICE KIND [PORT]` | every program that has the device open gets an event of its port, or of another |
//! | `mtu DEVICE BYTES` | the maximum packet length of the link |
//! | `gid DEVICE remove INDEX`, `gid DEVICE add [INDEX]` | an address leaves, or the IPv4 address returns; from the connection manager too, with its last entry |
//! | `overrun DEVICE` | every completion queue of the device runs over |
//! | `die DEVICE`, `revive DEVICE` | the device is lost, and can be opened again |
//! | `rename DEVICE NAME` | the device has another name, and its GUID as before |
//! | `restart DEVICE` | the numbers of the device start again; no program has it open |
//! | `count DEVICE CALL` | calls so far |
//! | `waiting DEVICE CALL` | calls that are held now |
//! | `pairs DEVICE` | a line for each queue pair: number, state, peer's number, outstanding work |
//! | `packets DEVICE` | packets that came to the device |
//! | `queues DEVICE` | the number of completion queues |
//! | `vectors DEVICE` | a line for each completion queue: its vector |
//! | `forks copied`, `forks shared` | whether the kernel copies registered pages for a child |
//! | `manager hold DEVICE EVENT`, `manager release DEVICE EVENT` | events of the connection manager wait |
//! | `manager lose DEVICE EVENT`, `manager repeat DEVICE EVENT` | held events are lost, or come twice |
//! | `manager reject DEVICE STATUS`, `manager unreachable DEVICE` | the next dial of the device ends so |
//! | `manager fail DEVICE EVENT STATUS` | that step of the device's next dial fails: `ADDR_ERROR`, `ROUTE_ERROR`, `CONNECT_ERROR` |
//! | `manager disconnect DEVICE NUMBER` | the connection of a queue pair ends, in any state |
//! | `manager remove DEVICE NUMBER` | the identifier of a queue pair learns that its device is removed, before others do |
//! | `manager address DEVICE ipv4`, or `ipv6`, `leaves` or `returns` | an address leaves the device's interface, or returns; iWARP has no event of it |
//! | `manager stale DEVICE NUMBER` | peers reject dials of the queue pair, whose number is in timewait there |
//! | `manager timewait DEVICE NUMBER` | the timewait of a queue pair ends |
//! | `manager ports DEVICE FIRST LAST` | identifiers of all devices that ask for any port are given one of these |
//! | `manager list DEVICE` | a line for each identifier: queue pair, state, port, traffic class and timeout if a program set them |
//! | `instant DEVICE [copying] [every NANOS]` | it answers posts at once, or at this rate |
//! | `instant DEVICE copying held` | the same, and each copy waits for another mode |
//! | `instant DEVICE off` | it answers as the tables do |
//! | `laws` | a line for each broken law since the last time |
use crate::convert::status;
use crate::faults::{Effect, HELD_MAX, Held, PLANTED_MAX, Planted, check_call, take_all};
use crate::instant;
use crate::limit::LimitReached;
use crate::queues::{Event, Subject};
use crate::state::{State, changed, lock};
use handfast_transport_sim::verbs::{Gid, GidKind, Packet, Rebirth, Status};
use std::fmt::Write;

/// Runs a command.
pub(crate) fn run(line: &str) -> Result<String, String> {
    let mut state = lock();
    let result = execute(&mut state, line);
    instant::on_command(&state);
    drop(state);
    changed();
    result
}

type Answer = Result<String, String>;

const NOTHING: Answer = Ok(String::new());

pub(crate) fn execute(state: &mut State, line: &str) -> Answer {
    let words: Vec<&str> = line.split_whitespace().collect();
    let result = match words.as_slice() {
        ["hold" | "release" | "lose", "packets", ..] => packets(state, &words),
        ["held", from, to] => held(state, from, to),
        ["hold" | "release" | "fail", "completions" | "completion", ..] => {
            completions(state, &words)
        }
        ["hold" | "release" | "fail", "call", ..] => calls(state, &words),
        ["pass"] => pass(state),
        ["hold", "events", device] => {
            let nic = nic(state, device)?;
            state.faults.events.insert(nic);
            NOTHING
        }
        ["release", "events", device] => {
            let nic = nic(state, device)?;
            state.faults.events.remove(&nic);
            let contexts = &state.contexts;
            let of = |(context, _): &(u64, Event)| {
                contexts.get(context).is_none_or(|context| context.nic == nic)
            };
            let parked = take_all(&mut state.faults.parked_events, of);
            parked.into_iter().for_each(|(context, event)| state.raise_at(context, event));
            NOTHING
        }
        ["forks", word @ ("copied" | "shared")] => {
            state.gives_pages_away = *word == "shared";
            NOTHING
        }
        ["timers", "off"] => {
            state.timers.is_stopped = true;
            NOTHING
        }
        ["timers", "on"] => {
            state.resume();
            NOTHING
        }
        ["arrive", devices @ ..] => {
            let from: Vec<usize> =
                devices.iter().map(|device| nic(state, device)).collect::<Result<_, _>>()?;
            Ok(u8::from(state.arrive(&from)).to_string())
        }
        ["renew"] => return renew(state),
        ["instant", device, how @ ..] => {
            let nic = self::device(state, device)?;
            if state.twin(nic).is_some() {
                return Err("a device of two ports cannot be instant".to_owned());
            }
            instant::set(nic, how)?;
            NOTHING
        }
        ["manager", verb, device, rest @ ..] => {
            let nic = nic(state, device)?;
            crate::manager::run(state, verb, nic, rest)
        }
        ["laws"] => Ok(state.take_broken_laws().join("\n")),
        ["fail" | "break" | "expire" | "exhaust", ..] => queue_pairs(state, &words),
        ["count" | "waiting" | "packets" | "pairs" | "queues" | "vectors", ..] => {
            questions(state, &words)
        }
        _ => surroundings(state, &words),
    };
    state.settle();
    result
}

fn renew(state: &mut State) -> Answer {
    let is_used = !state.contexts.is_empty() || state.manager.is_used();
    if is_used || !state.faults.waiting.is_empty() {
        return Err("a device is open, or a call is held".to_owned());
    }
    *state = State::new(&state.list.clone());
    instant::reset();
    NOTHING
}

fn nic(state: &State, device: &str) -> Result<usize, String> {
    let found = state.listed.iter().position(|listed| listed.name == device);
    found.ok_or_else(|| {
        let names: Vec<&str> = state.listed.iter().map(|listed| listed.name).collect();
        format!("no device '{device}'; there are: {}", names.join(", "))
    })
}

/// A device, and not the second port of one.
fn device(state: &State, name: &str) -> Result<usize, String> {
    let nic = nic(state, name)?;
    match state.listed[nic].port_of {
        None => Ok(nic),
        Some(device) => Err(format!("'{name}' is a port of {}", state.listed[device].name)),
    }
}

fn number<Number: std::str::FromStr>(word: &str) -> Result<Number, String> {
    word.parse().map_err(|_| format!("'{word}' is not a number"))
}

fn status_of(word: &str) -> Result<Status, String> {
    status(number(word)?).ok_or_else(|| format!("no device here gives the status {word}"))
}

fn unknown() -> Answer {
    Err("no such command".to_owned())
}

/// A queue pair that exists.
fn pair(state: &State, device: &str, word: &str) -> Result<(usize, u32), String> {
    let (nic, number) = (nic(state, device)?, number(word)?);
    match state.fabric.queue_pair(nic, number) {
        Some(_) => Ok((nic, number)),
        None => Err(format!("{device} has no queue pair {number}")),
    }
}

fn held(state: &State, from: &str, to: &str) -> Answer {
    let path = (nic(state, from)?, nic(state, to)?);
    let of_path = |packet: &&Packet| (usize::from(packet.from), usize::from(packet.to)) == path;
    Ok(state.faults.parked_packets.iter().filter(of_path).count().to_string())
}

fn packets(state: &mut State, words: &[&str]) -> Answer {
    let (verb, held, from, to) = match words {
        [verb, "packets", from, to] => (*verb, Held::All, from, to),
        ["hold", "packets", from, to, "writes"] => ("hold", Held::Writes, from, to),
        _ => return unknown(),
    };
    let path = (nic(state, from)?, nic(state, to)?);
    match verb {
        "hold" => {
            state.faults.packets.insert(path, held);
        }
        verb => {
            let of_path =
                |packet: &Packet| (usize::from(packet.from), usize::from(packet.to)) == path;
            let parked = take_all(&mut state.faults.parked_packets, of_path);
            if verb == "release" {
                state.faults.packets.remove(&path);
                parked.into_iter().for_each(|packet| state.put(packet));
            }
        }
    }
    NOTHING
}

fn completions(state: &mut State, words: &[&str]) -> Answer {
    let (verb, device, rest) = match words {
        [verb, _, device, rest @ ..] => (*verb, nic(state, device)?, rest),
        _ => return unknown(),
    };
    let queue_pair = rest.first().map(|word| number(word)).transpose()?;
    let is_of = |of: usize, number: u32| {
        of == device && queue_pair.is_none_or(|wanted: u32| wanted == number)
    };
    match verb {
        "hold" => {
            let held = &mut state.faults.completions;
            if held.len() >= HELD_MAX && !held.contains(&(device, queue_pair)) {
                return Err(LimitReached::Held.to_string());
            }
            held.insert((device, queue_pair));
        }
        "release" => {
            state.faults.completions.remove(&(device, queue_pair));
            let parked = take_all(&mut state.faults.parked_completions, |(of, completion)| {
                is_of(*of, completion.number)
            });
            parked.into_iter().for_each(|(of, completion)| state.complete(of, completion));
        }
        _ => {
            let status = status_of(rest.get(1).ok_or("no status is named")?)?;
            let held = &mut state.faults.parked_completions;
            let found = held.iter_mut().find(|(of, completion)| is_of(*of, completion.number));
            found.ok_or("no such completion is held")?.1.status = status;
        }
    }
    NOTHING
}

fn calls(state: &mut State, words: &[&str]) -> Answer {
    let [verb, _, device, call, rest @ ..] = words else { return unknown() };
    let nic = nic(state, device)?;
    check_call(call)?;
    let options: &[&str] = match *verb {
        "hold" => &["after"],
        "fail" => &["after", "times"],
        _ => &["at"],
    };
    let of_options = if *verb == "hold" { rest } else { rest.get(1..).unwrap_or_default() };
    let unknown = of_options.iter().step_by(2).find(|word| !options.contains(word));
    if let Some(word) = unknown {
        return Err(format!("no option '{word}'; there are: {}", options.join(", ")));
    }
    let option = |name: &str| {
        let at = rest.iter().position(|word| *word == name);
        at.map(|at| number::<u64>(rest.get(at + 1).unwrap_or(&"nothing"))).transpose()
    };
    let (after, times) = (option("after")?.unwrap_or(0), option("times")?);
    let code = || number::<i32>(rest.first().unwrap_or(&"nothing"));
    let effect = match *verb {
        "hold" => Effect::Hold,
        "fail" if code()? == 0 => return Err("0 is no error".to_owned()),
        "fail" if times == Some(0) => return Err("a call cannot fail 0 times".to_owned()),
        "fail" => Effect::Fail { code: code()?, times },
        _ => {
            let code = if rest.is_empty() { 0 } else { code()? };
            return match option("at")? {
                None => release(state, nic, call, code),
                Some(place) => release_one(state, (nic, call), code, place),
            };
        }
    };
    if state.faults.planted.len() >= PLANTED_MAX {
        return Err(LimitReached::Planted.to_string());
    }
    state.faults.planted.push(Planted { nic, call: (*call).to_owned(), after, effect });
    NOTHING
}

fn release(state: &mut State, nic: usize, call: &str, code: i32) -> Answer {
    let faults = &mut state.faults;
    faults.planted.retain(|planted| {
        (planted.nic, planted.call.as_str()) != (nic, call)
            || !matches!(planted.effect, Effect::Hold)
    });
    let of_call = faults.waiting.values_mut().filter(|held| held.is(nic, call));
    of_call.for_each(|held| held.released = Some(code));
    NOTHING
}

fn release_one(state: &mut State, (nic, call): (usize, &str), code: i32, place: u64) -> Answer {
    let waiting = state.faults.waiting.values_mut();
    let mut of_call = waiting.filter(|held| held.is(nic, call) && held.released.is_none());
    let place = usize::try_from(place).unwrap_or(usize::MAX);
    of_call.nth(place).ok_or("no such call waits")?.released = Some(code);
    NOTHING
}

fn pass(state: &mut State) -> Answer {
    state.faults.planted.clear();
    state.faults.waiting.values_mut().for_each(|held| held.released = held.released.or(Some(0)));
    NOTHING
}

fn queue_pairs(state: &mut State, words: &[&str]) -> Answer {
    match words {
        ["fail", "request", device, word, status] => {
            let ((nic, number), status) = (pair(state, device, word)?, status_of(status)?);
            state.fabric.fail_oldest(nic, number, status);
        }
        ["break", device, word] => {
            let (nic, number) = pair(state, device, word)?;
            state.fabric.break_queue_pair(nic, number);
        }
        ["expire", device, "all"] => {
            let nic = nic(state, device)?;
            let waiting: Vec<u32> = state.fabric.waiting(nic).collect();
            waiting.iter().for_each(|number| state.fabric.expire(nic, *number));
            return Ok(u8::from(!waiting.is_empty()).to_string());
        }
        ["expire", device, word] => {
            let (nic, number) = pair(state, device, word)?;
            state.fabric.expire(nic, number);
        }
        ["exhaust", device, word] => {
            let (nic, number) = pair(state, device, word)?;
            state.fabric.exhaust(nic, number);
        }
        _ => return unknown(),
    }
    NOTHING
}

fn questions(state: &State, words: &[&str]) -> Answer {
    match words {
        ["count", device, call] => {
            let nic = nic(state, device)?;
            check_call(call)?;
            let instant = if *call == "ibv_post_send" { instant::posts(nic) } else { 0 };
            Ok((state.faults.count(nic, call) + instant).to_string())
        }
        ["waiting", device, call] => {
            let nic = nic(state, device)?;
            check_call(call)?;
            let waits = state.faults.waiting.values();
            let waits = waits.filter(|held| held.is(nic, call) && held.released.is_none());
            Ok((waits.count() as u64 + instant::waiting(nic, call)).to_string())
        }
        ["pairs", device] => {
            let mut text = String::new();
            for (number, qp) in state.fabric.nic(nic(state, device)?).queue_pairs() {
                let peer = qp.bond().map_or(0, |(_, number)| number);
                let _ = writeln!(text, "{number} {} {peer} {}", qp.state(), qp.outstanding());
            }
            Ok(text)
        }
        ["packets", device] => {
            let nic = nic(state, device)?;
            Ok(state.arrived.get(&nic).copied().unwrap_or(0).to_string())
        }
        ["queues", device] => {
            let nic = nic(state, device)?;
            let of_nic = state.queues.values().filter(|queue| queue.nic == nic);
            Ok(of_nic.count().to_string())
        }
        ["vectors", device] => {
            let nic = nic(state, device)?;
            let of_nic = state.queues.values().filter(|queue| queue.nic == nic);
            Ok(of_nic.map(|queue| format!("{}\n", queue.vector)).collect())
        }
        _ => unknown(),
    }
}

fn rename(state: &mut State, device: &str, name: &str) -> Answer {
    let device = self::device(state, device)?;
    if state.twin(device).is_some() {
        return Err("a device of two ports keeps its name".to_owned());
    }
    if nic(state, name).is_ok() {
        return Err(format!("there is a device '{name}'"));
    }
    // As that of the list, for the life of the process.
    state.listed[device].name = name.to_owned().leak();
    NOTHING
}

fn restart(state: &mut State, name: &str) -> Answer {
    let nic = device(state, name)?;
    if state.contexts.values().any(|context| context.nic == nic && !context.is_dead) {
        return Err("the device is open".to_owned());
    }
    for nic in [Some(nic), state.twin(nic)].into_iter().flatten() {
        state.fabric.crash(nic, Rebirth::Anew);
    }
    NOTHING
}

/// The connection manager has an address while the port has an entry of its kind.
fn on_gids(state: &mut State, nic: usize, changed: Option<GidKind>) {
    let is_ipv6 = match changed {
        Some(GidKind::Ipv4) => false,
        Some(GidKind::Ipv6) => true,
        _ => return,
    };
    let mut entries = state.fabric.nic(nic).gids().iter().flatten();
    let is_there = entries.any(|gid| Some(gid.kind) == changed);
    state.manager.set_address(nic, is_ipv6, is_there);
}

fn surroundings(state: &mut State, words: &[&str]) -> Answer {
    match words {
        ["cut", from, to] => {
            let (from, to) = (nic(state, from)?, nic(state, to)?);
            state.fabric.cut(from, to);
        }
        ["mend", from, to] => {
            let (from, to) = (nic(state, from)?, nic(state, to)?);
            state.fabric.mend(from, to);
        }
        ["port", device, word @ ("up" | "down")] => {
            let nic = nic(state, device)?;
            state.fabric.set_port(nic, *word == "up");
        }
        ["event", device, kind, port @ ..] => {
            let (nic, kind) = (nic(state, device)?, number(kind)?);
            let port = port.first().map_or(Ok(1), |port| number(port))?;
            let event = Event { kind, subject: Subject::Port(port) };
            state.try_raise(nic, event).map_err(|limit| limit.to_string())?;
        }
        ["mtu", device, bytes] => {
            let (nic, bytes) = (nic(state, device)?, number(bytes)?);
            state.fabric.set_link_mtu(nic, bytes);
        }
        ["gid", device, "remove", index] => {
            let (nic, index) = (nic(state, device)?, number(index)?);
            let gids = state.fabric.nic(nic).gids();
            let gone: Option<Gid> = gids.get::<usize>(index).copied().flatten();
            if !state.fabric.remove_gid(nic, index) {
                return Err(format!("{device} has no address at index {index}"));
            }
            on_gids(state, nic, gone.map(|gid| gid.kind));
        }
        ["gid", device, "add"] => {
            let nic = nic(state, device)?;
            let gid = Gid { kind: GidKind::Ipv4, host: nic as u16, version: 2 };
            state.fabric.add_gid(nic, gid).ok_or("the table is full")?;
            on_gids(state, nic, Some(gid.kind));
        }
        ["gid", device, "add", index] => {
            let (nic, index) = (nic(state, device)?, number(index)?);
            let gid = Gid { kind: GidKind::Ipv4, host: nic as u16, version: 2 };
            if !state.fabric.set_gid(nic, index, gid) {
                return Err("the table has no such empty place".to_owned());
            }
            on_gids(state, nic, Some(gid.kind));
        }
        ["overrun", device] => {
            let nic = nic(state, device)?;
            let of_nic =
                |(id, queue): (&u64, &crate::queues::Queue)| (queue.nic == nic).then_some(*id);
            let queues: Vec<u64> = state.queues.iter().filter_map(of_nic).collect();
            queues.into_iter().for_each(|queue| state.overrun(queue));
        }
        ["die", device] => {
            let nic = self::device(state, device)?;
            state.die(nic);
        }
        ["revive", device] => {
            let nic = self::device(state, device)?;
            if !state.dead.remove(&nic) {
                return Err("the device is not dead".to_owned());
            }
        }
        ["rename", device, name] => return rename(state, device, name),
        ["restart", device] => return restart(state, device),
        _ => return unknown(),
    }
    NOTHING
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line that names nothing is refused with what there is, and changes nothing.
    #[test]
    fn line_that_names_nothing_is_refused() {
        let mut state = State::new("rxe0=rxe");
        for (line, why) in [
            ("", "no such command"),
            ("port rxe0 sideways", "no such command"),
            ("die rxe1:2", "no device 'rxe1:2'"),
            ("forks torn", "no such command"),
            ("vectors rxe1", "no device 'rxe1'; there are: rxe0"),
            ("hold call rxe1 ibv_reg_mr", "no device 'rxe1'; there are: rxe0"),
            ("hold call rxe0 ibv_reg", "no call 'ibv_reg'; there are: ibv_alloc_pd"),
            ("release call rxe0 ibv_modify_qp(RST)", "no call 'ibv_modify_qp(RST)'"),
            ("count rxe0 ibv_post", "no call 'ibv_post'"),
            ("waiting rxe0 reg_mr", "no call 'reg_mr'"),
            ("hold call rxe0 ibv_reg_mr times 2", "no option 'times'; there are: after"),
            ("fail call rxe0 ibv_reg_mr 5 afterwards 2", "no option 'afterwards'"),
            ("fail call rxe0 ibv_reg_mr 5 after", "'nothing' is not a number"),
            ("fail call rxe0 ibv_reg_mr", "'nothing' is not a number"),
            ("fail call rxe0 ibv_reg_mr 0", "0 is no error"),
            ("release call rxe0 ibv_reg_mr 0 at 0", "no such call waits"),
            ("break rxe0 17", "rxe0 has no queue pair 17"),
            ("fail completion rxe0 17 12", "no such completion is held"),
            ("fail completion rxe0 17 99", "no device here gives the status 99"),
            ("gid rxe0 remove 77", "rxe0 has no address at index 77"),
            ("revive rxe0", "the device is not dead"),
        ] {
            let refused = execute(&mut state, line);
            assert!(
                refused.as_ref().is_err_and(|error| error.contains(why)),
                "{line}: {refused:?}"
            );
        }
        assert!(!state.faults.has_any());
        for whole in ["ibv_modify_qp", "ibv_modify_qp(ERR)"] {
            assert_eq!(execute(&mut state, &format!("count rxe0 {whole}")), Ok("0".to_owned()));
        }
    }
}
