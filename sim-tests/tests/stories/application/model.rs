//! Guarantees to an application in its own view: demands, lanes gained and lost, and arriving
//! bytes, without the handshake behind them.

use handfast_core::Event;
use handfast_core::node::Failure;
use std::collections::{BTreeMap, BTreeSet};

/// An application, and the peer that it is about.
pub(super) type Side = (usize, usize);

/// A lane as an application knows it: its node's run, and a number within that run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Lane {
    pub(super) run: u32,
    pub(super) number: u64,
}

/// An event in an application's view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Happening {
    Open(Side),
    Close(Side),
    Crash(usize),
    /// A lane failed.
    LaneFailed(usize),
    /// Messages, operations and timers, lost and late ones included.
    Other,
}

/// Applications' view after an event.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    /// Lanes that may be posted to.
    pub(super) lanes: BTreeMap<Side, Vec<Lane>>,
    /// Those of them on which bytes get lost although the peer's end of it lives.
    pub(super) deaf: BTreeSet<Side>,
    /// Bytes arrive both ways.
    pub(super) connected: BTreeSet<Side>,
    /// Events of the nodes in this step, each with its peer.
    pub(super) events: Vec<(Side, Event)>,
}

/// The reference: small enough to be seen to be right.
#[derive(Debug, Default)]
pub(super) struct Model {
    wanted: BTreeSet<Side>,
    ever_wanted: BTreeSet<Side>,
    lanes: BTreeMap<Side, Lane>,
    lost: BTreeSet<(Side, Lane)>,
    /// Pairs whose two lanes carry bytes, and to whom nothing has happened since.
    sound: BTreeSet<Side>,
    crashes: BTreeMap<usize, u32>,
    restarts_told: BTreeMap<Side, u32>,
    /// Something other than an open has been asked for, or gone wrong.
    disturbed: bool,
}

impl Model {
    /// Takes an event and what is seen after it.
    pub(super) fn observe(
        &mut self,
        happening: Happening,
        fault: bool,
        view: &View,
    ) -> Result<(), String> {
        self.disturbed |= fault;
        match happening {
            Happening::Open(side) => {
                self.wanted.insert(side);
                self.ever_wanted.insert(side);
            }
            Happening::Close(side) => {
                self.disturbed = true;
                self.wanted.remove(&side);
                self.upset(|(site, peer)| (site, peer) == side || (peer, site) == side);
            }
            Happening::Crash(site) => {
                self.wanted.retain(|(own, _)| *own != site);
                *self.crashes.entry(site).or_default() += 1;
                self.restarts_told.retain(|(own, _), _| *own != site);
                self.upset(|(own, peer)| own == site || peer == site);
            }
            Happening::LaneFailed(site) => self.upset(|(own, peer)| own == site || peer == site),
            Happening::Other => {}
        }
        view.events.iter().try_for_each(|(side, event)| self.told(*side, event))?;
        self.compare(view)?;
        if let Happening::Close(side) = happening
            && self.lanes.contains_key(&side)
        {
            return Err(format!("{side:?} has a lane after it closed"));
        }
        Ok(())
    }

    fn upset(&mut self, concerned: impl Fn(Side) -> bool) {
        self.sound.retain(|side| !concerned(*side));
    }

    fn told(&mut self, side: Side, event: &Event) -> Result<(), String> {
        match event {
            Event::OpenFailed { failure, .. } => {
                if !self.wanted.remove(&side) {
                    return Err(format!(
                        "{side:?} got the failure of a demand that it does not have"
                    ));
                }
                if !self.disturbed && !matches!(failure, Failure::Limit(_)) {
                    return Err(format!("{side:?} failed though nothing happened: {failure}"));
                }
            }
            Event::PeerRestarted { old, new, .. } => {
                let told = self.restarts_told.entry(side).or_default();
                *told += 1;
                let crashes = self.crashes.get(&side.1).copied().unwrap_or_default();
                if *told > crashes || new <= old {
                    return Err(format!("{side:?} got an unexpected restart {old:?} → {new:?}"));
                }
            }
            Event::NameConflict { .. } => {
                return Err(format!("{side:?} got a name conflict; there is none"));
            }
            Event::Undeclared { .. } => return Err(format!("{side:?}: {event:?}")),
            _ => {}
        }
        Ok(())
    }

    fn compare(&mut self, view: &View) -> Result<(), String> {
        if let Some((side, lanes)) = view.lanes.iter().find(|(_, lanes)| lanes.len() > 1) {
            return Err(format!("{side:?} has {lanes:?} at a time"));
        }
        let now: BTreeMap<Side, Lane> =
            view.lanes.iter().map(|(side, lanes)| (*side, lanes[0])).collect();
        for (side, lane) in &self.lanes {
            if now.get(side) == Some(lane) {
                continue;
            }
            if self.sound.contains(side) {
                return Err(format!("{side:?} lost a sound lane although nothing happened to it"));
            }
            self.lost.insert((*side, *lane));
        }
        for (side, lane) in now.iter().filter(|(side, lane)| self.lanes.get(side) != Some(*lane)) {
            if self.lost.contains(&(*side, *lane)) {
                return Err(format!("{side:?} was given {lane:?} once more"));
            }
            if !self.ever_wanted.contains(side) && !self.ever_wanted.contains(&(side.1, side.0)) {
                return Err(format!("{side:?} was given a lane that nobody wanted"));
            }
            if view.deaf.contains(side) {
                return Err(format!("{side:?} was given a lane whose other end does not listen"));
            }
        }
        self.lanes = now;
        let both = |side: &Side| view.connected.contains(side);
        let sound = view.connected.iter().filter(|(site, peer)| both(&(*peer, *site)));
        self.sound.extend(sound);
        Ok(())
    }

    /// Nothing is left to happen, and no queue pair is stuck: what is wanted is there.
    pub(super) fn at_rest(&self, view: &View) -> Result<(), String> {
        if let Some(side) = self.wanted.iter().find(|side| !view.connected.contains(side)) {
            return Err(format!("{side:?} wants a lane, has none, and got no reason"));
        }
        let alone = |side: &&Side| !self.lanes.contains_key(&(side.1, side.0));
        if let Some(side) = self.lanes.keys().find(alone) {
            return Err(format!("{side:?} has a lane and its peer has none"));
        }
        Ok(())
    }
}
