//! Expectations that a script may state about a world.

use crate::script::Reason;
use handfast_core::node::StateKind;
use handfast_core::wire::RefusalReason;
use handfast_core::{Event, Lifecycle};
use handfast_transport_sim::World;

/// Observations at one site.
#[derive(Clone, Debug, Default)]
pub(crate) struct SeenSite {
    pub(crate) ended: usize,
    pub(crate) reported: Vec<Event>,
    restarts: usize,
}

/// Observations of a script.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) sites: Vec<SeenSite>,
    /// Refusals given by the last event.
    pub(crate) refusals: Vec<RefusalReason>,
    /// Inputs that each site had ignored before the last event.
    pub(crate) ignored_before: Vec<u64>,
}

impl Seen {
    pub(crate) fn new(world: &World) -> Self {
        Self {
            sites: vec![SeenSite::default(); world.sites()],
            refusals: Vec::new(),
            ignored_before: vec![0; world.sites()],
        }
    }

    pub(crate) fn restarted(&mut self, site: usize) {
        let restarts = self.sites[site].restarts + 1;
        self.sites[site] = SeenSite { restarts, ..SeenSite::default() };
    }

    pub(crate) fn ignored(&self, world: &World) -> Vec<u64> {
        (0..world.sites()).map(|site| world.node(site).counters().ignored).collect()
    }
}

/// Checks one expectation.
pub(crate) fn check(world: &World, seen: &Seen, what: &[&str]) -> Result<(), Reason> {
    let site = |name: &str| site_of(world, name);
    match what {
        [a, "established", "towards", b] => {
            let state = towards(world, site(a)?, site(b)?);
            met(state == Some(StateKind::Established), || format!("{state:?}"))
        }
        [a, "not", "established", "towards", b] => {
            let state = towards(world, site(a)?, site(b)?);
            met(state != Some(StateKind::Established), || format!("{state:?}"))
        }
        [a, "and", b, "connected"] => {
            let (a, b) = (site(a)?, site(b)?);
            let (there, back) = (world.connected(a, b), world.connected(b, a));
            met(there && back, || format!("there: {there}, back: {back}"))
        }
        [a, "not", "connected", "to", b] => {
            met(!world.connected(site(a)?, site(b)?), || "bytes flow".into())
        }
        ["refused", reason] => {
            let given = |given: &RefusalReason| is_named(given, reason);
            met(seen.refusals.iter().any(given), || format!("{:?}", seen.refusals))
        }
        ["nothing", "refused"] => met(seen.refusals.is_empty(), || format!("{:?}", seen.refusals)),
        [a, "ignored", "it"] => {
            let site = site(a)?;
            let now = world.node(site).counters().ignored;
            met(now > seen.ignored_before[site], || format!("{now} messages ignored in all"))
        }
        [a, "reported", event] => reported(seen, site(a)?, event, true),
        [a, "never", "reported", event] => reported(seen, site(a)?, event, false),
        [a, verb, count, of @ ..] if count.parse::<usize>().is_ok() => {
            let found = count_of(world, seen, site(a)?, verb, of)?;
            met(count.parse() == Ok(found), || format!("{found}"))
        }
        [pair, state] if pair.contains('#') => in_state(world, seen, pair, state),
        _ => Err(Reason::Unreadable("nothing can be expected in these words".into())),
    }
}

fn met(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), Reason> {
    if holds { Ok(()) } else { Err(Reason::Unmet(otherwise())) }
}

fn site_of(world: &World, name: &str) -> Result<usize, Reason> {
    let letter = match name.as_bytes() {
        [letter] => letter.to_ascii_lowercase(),
        _ => 0,
    };
    let site = usize::from(letter.wrapping_sub(b'a'));
    if site < world.sites() {
        return Ok(site);
    }
    Err(Reason::Unreadable(format!("there is no site '{name}'")))
}

/// The newest lifecycle towards a peer.
fn towards(world: &World, site: usize, peer: usize) -> Option<StateKind> {
    let path = world.path(peer);
    let lanes = world.node(site).lifecycles().filter(|(_, _, to, _)| *to == path);
    let states = lanes.map(|(_, state, ..)| state);
    states.max_by_key(|state| *state == StateKind::Established)
}

fn reported(seen: &Seen, site: usize, event: &str, wanted: bool) -> Result<(), Reason> {
    let events = &seen.sites[site].reported;
    let found = events.iter().any(|reported| is_named(reported, event));
    met(found == wanted, || format!("{events:?}"))
}

/// Compares the debug name of a value, ignoring case.
fn is_named(value: &impl std::fmt::Debug, name: &str) -> bool {
    let text = format!("{value:?}");
    let end = text.find(|letter: char| !letter.is_alphanumeric()).unwrap_or(text.len());
    text[..end].eq_ignore_ascii_case(name)
}

fn count_of(
    world: &World,
    seen: &Seen,
    site: usize,
    verb: &str,
    of: &[&str],
) -> Result<usize, Reason> {
    match (verb, of) {
        ("holds", ["lifecycles"]) => Ok(world.node(site).lifecycles().count()),
        ("holds", ["queue", "pairs"]) => {
            Ok(world.queue_pairs().iter().filter(|qp| qp.host == site).count())
        }
        ("published", ["lanes"]) => {
            Ok(usize::try_from(world.node(site).counters().published).unwrap_or(usize::MAX))
        }
        ("ended", ["lifecycles"]) => Ok(seen.sites[site].ended),
        _ => Err(Reason::Unreadable("nothing of this kind is counted".into())),
    }
}

/// `a'#2` is lifecycle 2 of the second run of site A; of an earlier run everything is gone.
fn in_state(world: &World, seen: &Seen, pair: &str, wanted: &str) -> Result<(), Reason> {
    let unreadable = || Reason::Unreadable(format!("'{pair}' is no lifecycle"));
    let (name, number) = pair.split_once('#').ok_or_else(unreadable)?;
    let site = site_of(world, name.trim_end_matches('\''))?;
    let lifecycle = Lifecycle(number.parse().map_err(|_| unreadable())?);
    let present = name.matches('\'').count() == seen.sites[site].restarts;
    let state = world.node(site).state_of(lifecycle).filter(|_| present);
    let owned =
        |qp: &&handfast_transport_sim::QueuePair| (qp.host, qp.lifecycle) == (site, lifecycle);
    let qp = world.queue_pairs().iter().find(owned).filter(|_| present);
    let usable = qp.is_some_and(|qp| qp.published && !qp.revoked);
    let holds = match (wanted, state) {
        ("gone", state) => state.is_none(),
        ("usable", _) => usable,
        ("unusable", _) => !usable,
        (name, Some(state)) => is_named(&state, name),
        (_, None) => false,
    };
    met(holds, || format!("{state:?}, usable: {usable}"))
}
