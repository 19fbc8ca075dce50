//! The measurements. Each returns what it saw, or why it saw nothing.

use super::bench::{ALL, Bench, End, PSN, Pair, Refused, Wiring, state};
use super::{Behaviour, Observed};
use crate::error::VerbsError;
use crate::gid::{GidEntry, GidKind};
use crate::status::{CompletionError, FLUSHED};
use crate::verbs::objects::bare::{
    BareAttributes, BareCompletion, BareKind, BareQueuePair, BareRequest, BareRights,
};
use handfast_transport::Memory;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Exponent of the ACK timeout where an answer comes: 268 ms.
pub(super) const TIMEOUT_LONG: u8 = 16;
/// The same where none comes: 16.8 ms.
pub(super) const TIMEOUT_SHORT: u8 = 12;
/// Retries where an answer comes.
pub(super) const RETRIES_MANY: u8 = 4;
/// Retries where none comes.
pub(super) const RETRIES_FEW: u8 = 1;
/// The count that is unlimited on some devices.
pub(super) const RETRIES_SEVEN: u8 = 7;
/// Measurements of the time before a silent peer is given up.
const SILENCE_TRIES: usize = 3;
/// The longest time of seven retries, in times of one. The tries are 8 and 2.
const SEVEN_FACTOR: u32 = 8;
/// After this time without a completion there is none.
const SILENCE: Duration = Duration::from_secs(1);
/// After this time without an event there is none.
const EVENT_MAX: Duration = Duration::from_millis(200);
/// The distance of a wrong packet number from the expected one.
const PSN_DISTANCE: u32 = 1_000;
/// Bytes of a read that is behind.
const STALE_BYTES: u32 = 8;
/// Bytes of a read whose sink is of interest, and of a write.
const BYTES: u32 = 64;
/// Length of memory that a measurement registers.
const PAGE_BYTES: usize = 4096;
/// Queue pairs whose numbers are compared.
const NUMBERS: usize = 8;
/// The largest path MTU.
const MTU_MAX: u32 = 4096;
/// Errors by which a driver says that queue pairs connect in another way; 524 is the kernel's own.
const CONNECTS_OTHERWISE: [i32; 3] = [libc::EINVAL, libc::EOPNOTSUPP, 524];

pub(super) type Outcome = Result<Observed, String>;

fn behaviour(behaviour: Behaviour) -> Outcome {
    Ok(Observed::Behaviour(behaviour))
}

fn words(completion: &BareCompletion) -> String {
    let error = CompletionError { status: completion.status, vendor: completion.vendor };
    format!("status {} ({}), vendor {:#x}", error.status, error.words(), error.vendor)
}

/// Two queue pairs between which bytes move.
fn working(bench: &Bench) -> Result<Pair, String> {
    bench.pair(&Wiring::default()).map_err(|refused| refused.words())
}

/// # Errors
/// The devices cannot reach each other.
pub(super) fn connects(bench: &Bench) -> Result<Outcome, VerbsError> {
    let pair = match bench.pair(&Wiring::default()) {
        Ok(pair) => pair,
        Err(refused) if is_other_method(&refused) => {
            bench.tell(&refused.words());
            return Ok(behaviour(Behaviour::ByKernelAlone));
        }
        Err(refused) => return Err(bench.error(&refused)),
    };
    Ok(match bench.moves(&pair.requester, bench.left()) {
        Ok((true, _)) => behaviour(Behaviour::OutOfBand),
        Ok((false, End::Completed(completion))) => {
            Err(format!("connected, and a write ended with {}", words(&completion)))
        }
        Ok((false, _)) => Err("connected, and a write did not end".to_owned()),
        Err(why) => Err(why),
    })
}

/// Connects through the connection manager from now on, and moves bytes.
pub(super) fn dials(bench: &mut Bench) -> Result<(), String> {
    bench.dial()?;
    let pair = working(bench)?;
    match bench.moves(&pair.requester, bench.left())? {
        (true, _) => Ok(()),
        (false, End::Completed(completion)) => {
            Err(format!("through the connection manager a write ended with {}", words(&completion)))
        }
        (false, _) => Err("through the connection manager a write did not arrive".to_owned()),
    }
}

fn is_other_method(refused: &Refused) -> bool {
    let steps = ["ibv_modify_qp(RTR)", "ibv_modify_qp(RTS)", "ibv_create_qp"];
    steps.contains(&refused.step) && CONNECTS_OTHERWISE.contains(&refused.code)
}

pub(super) fn reset(bench: &Bench) -> Outcome {
    let pair = working(bench)?;
    if !bench.moves(&pair.requester, SILENCE)?.0 {
        return Err("no byte moved before RESET".to_owned());
    }
    let wanted = BareAttributes { state: state::RESET, ..BareAttributes::default() };
    let returned = pair.requester.modify(&wanted);
    if returned != 0 {
        bench.tell(&format!("the call returned {returned}"));
        return behaviour(Behaviour::ResetRefused);
    }
    let present = pair.requester.state().map_err(|code| format!("ibv_query_qp returned {code}"))?;
    bench.tell(&format!("the state afterwards is {present}"));
    match present {
        state::RESET | state::INIT => {}
        state::ERR => return behaviour(Behaviour::ResetFails),
        _ => return behaviour(Behaviour::ResetIgnored),
    }
    // The other side has a fresh queue pair, so that one RESET alone is measured.
    let wiring = Wiring::default();
    let fresh = bench.queue_pair(1).map_err(|refused| refused.words())?;
    let again = bench
        .connect(1, &fresh, pair.requester.number(), &wiring)
        .and_then(|()| bench.connect(0, &pair.requester, fresh.number(), &wiring));
    if let Err(refused) = again {
        bench.tell(&refused.words());
        return behaviour(Behaviour::ResetMutes);
    }
    let (moved, end) = bench.moves(&pair.requester, SILENCE)?;
    if let (false, End::Completed(completion)) = (moved, end) {
        bench.tell(&words(&completion));
    }
    behaviour(if moved { Behaviour::ResetClears } else { Behaviour::ResetMutes })
}

pub(super) fn read_sink(bench: &Bench) -> Outcome {
    let local = BareRights { local_write: true, ..BareRights::default() };
    if reads_into(bench, local)? {
        return behaviour(Behaviour::LocalWrite);
    }
    if reads_into(bench, BareRights { remote_write: true, ..local })? {
        return behaviour(Behaviour::RemoteWrite);
    }
    Err("a read fails with the remote write right too".to_owned())
}

/// Whether a read into memory of these rights succeeds.
fn reads_into(bench: &Bench, rights: BareRights) -> Result<bool, String> {
    let memory = Memory::zeroed(PAGE_BYTES).map_err(|error| error.to_string())?;
    let sink = bench.sites[0].nic.register(memory.whole(), rights);
    let sink = sink.map_err(|error| error.to_string())?;
    let pair = working(bench)?;
    let request = BareRequest {
        address: memory.address(),
        local_key: sink.keys().0,
        ..bench.request(BareKind::Read, BYTES)
    };
    match bench.end_of(&pair.requester, &request, bench.left())? {
        End::Completed(completion) if completion.status == 0 => Ok(true),
        End::Completed(completion) => {
            bench.tell(&words(&completion));
            Ok(false)
        }
        End::Refused(code) => Err(format!("ibv_post_send returned {code}")),
        End::Silent => Err("a read did not end".to_owned()),
    }
}

/// A read of as many bytes: none without a key, as lanes probe.
pub(super) fn read_of(bench: &Bench, length: u32) -> Outcome {
    let pair = working(bench)?;
    let mut request = bench.request(BareKind::Read, length);
    if length == 0 {
        (request.remote_key, request.remote_address) = (0, 0);
    }
    answer(bench, bench.end_of(&pair.requester, &request, bench.left())?)
}

fn answer(bench: &Bench, end: End) -> Outcome {
    behaviour(match end {
        End::Completed(completion) if completion.status == 0 => Behaviour::Answered,
        End::Completed(completion) => {
            bench.tell(&words(&completion));
            let unanswered = completion.status == UNANSWERED;
            if unanswered { Behaviour::Unanswered } else { Behaviour::Refused }
        }
        End::Refused(code) => {
            bench.tell(&format!("ibv_post_send returned {code}"));
            Behaviour::Refused
        }
        End::Silent => Behaviour::Unanswered,
    })
}

/// `IBV_WC_RETRY_EXC_ERR`.
const UNANSWERED: u32 = 12;

/// Breaks a connection by a request that the peer refuses. A write of iWARP may be a success all the same.
fn broken(bench: &Bench, pair: &Pair) -> Result<(), String> {
    let kind = if bench.is_dialling() { BareKind::Read } else { BareKind::Write };
    match refused(bench, pair, kind)?.status {
        0 => Err("a request with an ended key succeeded".to_owned()),
        _ => Ok(()),
    }
}

/// A request for memory that the peer has deregistered, and its end.
fn refused(bench: &Bench, pair: &Pair, kind: BareKind) -> Result<BareCompletion, String> {
    let memory = Memory::zeroed(PAGE_BYTES).map_err(|error| error.to_string())?;
    let region = bench.sites[1].nic.register(memory.whole(), ALL);
    let region = region.map_err(|error| error.to_string())?;
    let remote_key = region.keys().1;
    let returned = region.deregister();
    if returned != 0 {
        return Err(format!("ibv_dereg_mr returned {returned}"));
    }
    let remote_address = memory.address();
    let request = BareRequest { remote_address, remote_key, ..bench.request(kind, BYTES) };
    completed(bench.end_of(&pair.requester, &request, bench.left())?)
}

fn completed(end: End) -> Result<BareCompletion, String> {
    match end {
        End::Completed(completion) => Ok(completion),
        End::Refused(code) => Err(format!("ibv_post_send returned {code}")),
        End::Silent => Err("a request did not end".to_owned()),
    }
}

fn status(bench: &Bench, completion: &BareCompletion) -> Outcome {
    let error = CompletionError { status: completion.status, vendor: completion.vendor };
    bench.tell(error.words());
    Ok(Observed::Status(error))
}

pub(super) fn wrong_key(bench: &Bench) -> Outcome {
    let pair = working(bench)?;
    status(bench, &refused(bench, &pair, BareKind::Write)?)
}

pub(super) fn local_key(bench: &Bench) -> Outcome {
    let pair = working(bench)?;
    let memory = Memory::zeroed(PAGE_BYTES).map_err(|error| error.to_string())?;
    let region = bench.sites[0].nic.register(memory.whole(), ALL);
    let region = region.map_err(|error| error.to_string())?;
    let local_key = region.keys().0;
    let returned = region.deregister();
    if returned != 0 {
        return Err(format!("ibv_dereg_mr returned {returned}"));
    }
    let address = memory.address();
    let request = BareRequest { address, local_key, ..bench.request(BareKind::Write, BYTES) };
    status(bench, &completed(bench.end_of(&pair.requester, &request, bench.left())?)?)
}

pub(super) fn late_post(bench: &Bench) -> Outcome {
    let pair = working(bench)?;
    broken(bench, &pair)?;
    bench.await_disconnect(&pair)?;
    let began = Instant::now();
    let late = bench.request(BareKind::Write, BYTES);
    behaviour(match bench.end_of(&pair.requester, &late, SILENCE)? {
        End::Completed(completion) => {
            bench.tell(&format!("{} after {} us", words(&completion), began.elapsed().as_micros()));
            if completion.status != FLUSHED {
                return Err("a write after an error ended in another way than flushed".to_owned());
            }
            Behaviour::Flushed
        }
        End::Refused(code) => {
            bench.tell(&format!("ibv_post_send returned {code}"));
            Behaviour::Refused
        }
        End::Silent => Behaviour::Lost,
    })
}

/// Queue pairs that give up soon, of which the requester sends from another number than expected.
fn apart(bench: &Bench, sent_psn: u32) -> Result<Pair, String> {
    let (timeout, retries) = (TIMEOUT_SHORT, RETRIES_FEW);
    let wiring = Wiring { timeout, retries, sent_psn, ..Wiring::default() };
    bench.pair(&wiring).map_err(|refused| refused.words())
}

pub(super) fn psn(bench: &Bench) -> Outcome {
    let pair = apart(bench, PSN + PSN_DISTANCE)?;
    let (moved, end) = bench.moves(&pair.requester, bench.left())?;
    match end {
        End::Completed(completion) => bench.tell(&words(&completion)),
        End::Refused(code) => return Err(format!("ibv_post_send returned {code}")),
        End::Silent => bench.tell("the write did not end"),
    }
    behaviour(if moved { Behaviour::Ignored } else { Behaviour::Honoured })
}

pub(super) fn stale_read(bench: &Bench) -> Outcome {
    let pair = apart(bench, PSN - PSN_DISTANCE)?;
    let request = bench.request(BareKind::Read, STALE_BYTES);
    answer(bench, bench.end_of(&pair.requester, &request, bench.left())?)
}

/// A connection by link-local addresses, or by other IPv6 addresses.
pub(super) fn address(bench: &Bench, is_link_local: bool) -> Outcome {
    let kind = if is_link_local { "link-local" } else { "global or unique local IPv6" };
    let found = |site: usize| {
        let fits = |entry: &&GidEntry| is_of(entry, is_link_local);
        let entry = bench.sites[site].gids.iter().find(fits).copied();
        entry.ok_or_else(|| format!("a port has no {kind} address of RoCE v2"))
    };
    let gids = Some([found(0)?, found(1)?]);
    let pair = match bench.pair(&Wiring { gids, ..Wiring::default() }) {
        Ok(pair) => pair,
        Err(refused) => {
            bench.tell(&refused.words());
            return behaviour(Behaviour::Refused);
        }
    };
    if bench.moves(&pair.requester, bench.left())?.0 {
        return behaviour(Behaviour::Taken);
    }
    bench.tell("it connects in name only");
    behaviour(Behaviour::Refused)
}

fn is_of(entry: &GidEntry, is_link_local: bool) -> bool {
    let address = entry.address;
    entry.kind == GidKind::RoceV2
        && entry.interface != 0
        && address.to_ipv4_mapped().is_none()
        && !address.is_unspecified()
        && address.is_unicast_link_local() == is_link_local
}

/// A write to a queue pair that is destroyed; returns the time until its end, if it ends.
fn silence(bench: &Bench, retries: u8, wait: Duration) -> Result<Option<Duration>, String> {
    let wiring = Wiring { timeout: TIMEOUT_SHORT, retries, ..Wiring::default() };
    let pair = bench.pair(&wiring).map_err(|refused| refused.words())?;
    let responder = Arc::into_inner(pair.responder);
    let returned = responder.map_or(libc::EBUSY, BareQueuePair::destroy);
    if returned != 0 {
        return Err(format!("ibv_destroy_qp returned {returned}"));
    }
    let began = Instant::now();
    let request = bench.request(BareKind::Write, BYTES);
    match bench.end_of(&pair.requester, &request, wait)? {
        End::Completed(completion) if completion.status != 0 => {
            bench.tell(&words(&completion));
            Ok(Some(began.elapsed()))
        }
        End::Completed(_) => Err("a write to a destroyed queue pair succeeded".to_owned()),
        End::Refused(code) => Err(format!("ibv_post_send returned {code}")),
        End::Silent => {
            bench.tell(&format!("nothing within {} ms", began.elapsed().as_millis()));
            bench.end(pair.requester);
            Ok(None)
        }
    }
}

/// The shortest of some tries: other work of the machine only adds to the time.
pub(super) fn silent_peer(bench: &Bench) -> Outcome {
    let mut shortest = None;
    for _ in 0..SILENCE_TRIES {
        let Some(took) = silence(bench, RETRIES_FEW, bench.left())? else {
            bench.silence.set(None);
            return behaviour(Behaviour::NeverEnds);
        };
        shortest = Some(shortest.map_or(took, |shortest: Duration| shortest.min(took)));
    }
    bench.silence.set(shortest);
    let shortest = shortest.ok_or("nothing was measured")?;
    Ok(Observed::Milliseconds(u64::try_from(shortest.as_millis()).unwrap_or(u64::MAX)))
}

pub(super) fn seven_retries(bench: &Bench) -> Outcome {
    let few = bench.silence.get().ok_or("the time of one retry is not known")?;
    let wait = few.saturating_mul(SEVEN_FACTOR).max(SILENCE);
    let is_cut = wait > bench.left();
    match silence(bench, RETRIES_SEVEN, wait)? {
        None if is_cut => {
            Err(format!("no end within the limit, of {} ms needed", wait.as_millis()))
        }
        None => behaviour(Behaviour::NeverEnds),
        Some(took) => {
            bench.tell(&format!("after {} ms", took.as_millis()));
            behaviour(Behaviour::Ends)
        }
    }
}

pub(super) fn larger_mtu(bench: &Bench) -> Outcome {
    let active = bench.path_mtu();
    if active >= MTU_MAX {
        return Err(format!("the port's path MTU of {active} is the largest there is"));
    }
    let larger = active * 2;
    bench.tell(&format!("{larger} over {active}"));
    behaviour(match bench.pair(&Wiring { path_mtu: Some(larger), ..Wiring::default() }) {
        Ok(_) => Behaviour::Taken,
        Err(refused) => {
            bench.tell(&refused.words());
            Behaviour::Refused
        }
    })
}

pub(super) fn error_event(bench: &Bench) -> Outcome {
    let pair = working(bench)?;
    broken(bench, &pair)?;
    behaviour(match bench.error_event(EVENT_MAX)? {
        Some(kind) => {
            bench.tell(&format!("event {kind}"));
            Behaviour::Raised
        }
        None => Behaviour::NotRaised,
    })
}

pub(super) fn numbers(bench: &Bench) -> Outcome {
    let mut seen = Vec::new();
    for _ in 0..NUMBERS {
        let queue_pair = bench.queue_pair(0).map_err(|refused| refused.words())?;
        seen.push(queue_pair.number());
        let returned = queue_pair.destroy();
        if returned != 0 {
            return Err(format!("ibv_destroy_qp returned {returned}"));
        }
    }
    bench.tell(&format!("{seen:?}"));
    behaviour(order(&seen))
}

fn order(numbers: &[u32]) -> Behaviour {
    let all = |is: fn(&u32, &u32) -> bool| numbers.windows(2).all(|two| is(&two[0], &two[1]));
    if all(|one, next| one == next) {
        Behaviour::ReusedAtOnce
    } else if all(|one, next| one < next) {
        Behaviour::Ascending
    } else {
        Behaviour::Unordered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers are the same, ascending, or neither.
    #[test]
    fn order_of_numbers_is_recognised() {
        assert_eq!(order(&[7, 7, 7]), Behaviour::ReusedAtOnce);
        assert_eq!(order(&[7, 8, 19]), Behaviour::Ascending);
        assert_eq!(order(&[7, 8, 8]), Behaviour::Unordered);
        assert_eq!(order(&[9, 8, 7]), Behaviour::Unordered);
    }

    /// An unreachable address is an error of the network, and no other way to connect.
    #[test]
    fn refused_step_tells_another_way_to_connect() {
        let is = |step, code| is_other_method(&Refused { step, code });
        assert!(is("ibv_modify_qp(RTS)", libc::EINVAL) && is("ibv_create_qp", 524));
        assert!(!is("ibv_modify_qp(RTR)", libc::ETIMEDOUT));
        assert!(!is("ibv_modify_qp(INIT)", libc::EINVAL));
    }

    /// IPv4 is neither kind, and an address of another namespace is none.
    #[test]
    fn addresses_of_ipv6_are_told_apart() {
        let entry = |address: &str, interface| GidEntry {
            index: 0,
            address: address.parse().unwrap(),
            kind: GidKind::RoceV2,
            interface,
        };
        assert!(is_of(&entry("fe80::1", 2), true) && !is_of(&entry("fe80::1", 2), false));
        assert!(is_of(&entry("fd00::1", 2), false) && is_of(&entry("2001:db8::1", 2), false));
        assert!(!is_of(&entry("::ffff:10.0.0.1", 2), false));
        assert!(!is_of(&entry("2001:db8::1", 0), false));
    }
}
