//! Commands about the connection manager.

use super::events::kind;
use super::protocol::{EVENTS, ManagerEvent};
use super::{FAILED_STEPS, Identifier, Planned, Stage, calls};
use crate::faults::take_all;
use crate::state::{EVENTS_MAX, State};
use std::fmt::Write;

type Answer = Result<String, String>;

/// Runs a command whose device was found: the words are its verb and those after the device.
pub(crate) fn run(state: &mut State, verb: &str, nic: usize, rest: &[&str]) -> Answer {
    match (verb, rest) {
        ("hold", [event]) => {
            state.manager.held.insert((nic, event_of(event)?));
        }
        ("release", [event]) => {
            let held = (nic, event_of(event)?);
            state.manager.held.remove(&held);
            let waiting = take(state, held);
            waiting.into_iter().for_each(|event| state.happen(event));
        }
        ("lose", [event]) => {
            let lost = take(state, (nic, event_of(event)?));
            lost.into_iter().for_each(|event| give_up(state, &event));
        }
        ("repeat", [event]) => {
            let of = (nic, event_of(event)?);
            let repeated = state.manager.waiting.iter().filter(|event| is_of(event, of));
            let repeated: Vec<ManagerEvent> = repeated.cloned().collect();
            if repeated.is_empty() {
                return Err("no such event is held".to_owned());
            }
            let room = EVENTS_MAX.saturating_sub(state.manager.waiting.len());
            state.manager.waiting.extend(repeated.into_iter().take(room));
        }
        ("reject", [status]) => {
            let status = status.parse().map_err(|_| format!("'{status}' is not a number"))?;
            state.manager.planned.insert(nic, Planned::Rejected(status));
        }
        ("unreachable", []) => {
            state.manager.planned.insert(nic, Planned::Unreachable);
        }
        ("fail", [event, status]) => {
            let known = FAILED_STEPS.into_iter().find(|step| step == event);
            let event = known.ok_or_else(|| {
                format!("no step '{event}'; there are: {}", FAILED_STEPS.join(", "))
            })?;
            let status = status.parse().map_err(|_| format!("'{status}' is not a number"))?;
            state.manager.planned.insert(nic, Planned::Failed { event, status });
        }
        ("disconnect", [number]) => {
            let (id, identifier) = identifier(state, nic, number)?;
            match identifier.stage {
                Stage::Dialling => state.over(id, "UNREACHABLE", -libc::ETIMEDOUT),
                _ => calls::end(state, id, identifier.peer),
            }
        }
        ("remove", [number]) => {
            let (id, _) = identifier(state, nic, number)?;
            state.tell(id, "DEVICE_REMOVAL", 0, super::Parameters::default());
        }
        ("address", [family, how]) => address(state, nic, family, how)?,
        ("stale", [number]) => {
            state.manager.stale.insert((nic, number_of(number)?));
        }
        ("timewait", [number]) => end_timewait(state, nic, number)?,
        ("ports", [first, last]) => {
            let number = |word: &str| word.parse().map_err(|_| format!("'{word}' is no port"));
            let (first, last) = (number(first)?, number(last)?);
            if first == 0 || first > last {
                return Err("the ports are none".to_owned());
            }
            state.manager.ports = Some((first, last));
        }
        ("list", []) => return Ok(list(state, nic)),
        _ => return Err("no such command".to_owned()),
    }
    Ok(String::new())
}

/// The timewait of a queue pair ends, at its peer and at its own identifier if there is one.
fn end_timewait(state: &mut State, nic: usize, word: &str) -> Result<(), String> {
    let was_stale = state.manager.stale.remove(&(nic, number_of(word)?));
    match identifier(state, nic, word) {
        Ok((id, _)) => state.tell(id, "TIMEWAIT_EXIT", 0, super::Parameters::default()),
        Err(_) if was_stale => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

fn number_of(word: &str) -> Result<u32, String> {
    word.parse().map_err(|_| format!("'{word}' is not a number"))
}

fn address(state: &mut State, nic: usize, family: &str, how: &str) -> Result<(), String> {
    let is_ipv6 = match family {
        "ipv4" => false,
        "ipv6" => true,
        _ => return Err(format!("'{family}' is neither ipv4 nor ipv6")),
    };
    let is_there = match how {
        "leaves" => false,
        "returns" => true,
        _ => return Err(format!("'{how}' is neither leaves nor returns")),
    };
    state.manager.set_address(nic, is_ipv6, is_there);
    Ok(())
}

fn event_of(word: &str) -> Result<usize, String> {
    kind(word).ok_or_else(|| format!("no event '{word}'; there are: {}", EVENTS.join(", ")))
}

fn is_of(event: &ManagerEvent, (nic, kind): (usize, usize)) -> bool {
    event.place.nic == Some(nic) && event.kind == kind
}

fn take(state: &mut State, of: (usize, usize)) -> Vec<ManagerEvent> {
    take_all(&mut state.manager.waiting, |event| is_of(event, of))
}

/// The message of an event is lost: the sides that wait for an answer learn that nobody answers.
fn give_up(state: &mut State, event: &ManagerEvent) {
    let identifiers = &state.manager.identifiers;
    let peer = identifiers.get(&event.id).and_then(|identifier| identifier.peer);
    let is_answer = identifiers.get(&event.id).is_some_and(|it| it.stage == Stage::Dialling);
    for id in [Some(event.id), peer].into_iter().flatten() {
        let stage = state.manager.identifiers.get(&id).map(|identifier| identifier.stage);
        match stage {
            Some(Stage::Dialling | Stage::Accepted) => {
                state.over(id, "UNREACHABLE", -libc::ETIMEDOUT);
            }
            // The accepting side of a stream was established by the answer that is lost.
            Some(Stage::Connected) if is_answer => state.disconnected(id),
            _ => {}
        }
    }
}

fn identifier(state: &State, nic: usize, word: &str) -> Result<(u64, Identifier), String> {
    let number = number_of(word)?;
    let is_of = |it: &Identifier| it.pair.is_some_and(|(_, of, is)| (of, is) == (nic, number));
    let mut found = state.manager.identifiers.iter().filter(|(_, it)| is_of(it));
    // Numbers come again: the last one is meant.
    let found = found.next_back().map(|(id, identifier)| (*id, identifier.clone()));
    found.ok_or_else(|| format!("no identifier has the queue pair {number}"))
}

fn list(state: &State, nic: usize) -> String {
    let mut text = String::new();
    for identifier in state.manager.identifiers.values() {
        if identifier.place.nic.is_none_or(|of| of == nic) {
            let number = identifier.pair.map_or(0, |(_, _, number)| number);
            let port = identifier.place.source.map_or(0, |source| source.port());
            let _ = write!(text, "{number} {} {port}", identifier.stage.name());
            let super::IdOptions { traffic_class, timeout } = identifier.options;
            for (name, value) in [("class", traffic_class), ("timeout", timeout)] {
                let _ = value.map_or(Ok(()), |value| write!(text, " {name} {value}"));
            }
            text.push('\n');
        }
    }
    text
}
