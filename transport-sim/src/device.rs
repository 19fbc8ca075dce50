//! Disturbances of ports, addresses, paths and processes, and their repair.

use crate::action::{Action, Choice};
use crate::verbs::GidKind;
use crate::world::World;

/// Start or end of a disturbance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disturbance {
    /// The port of a site goes down.
    PortDown(usize),
    /// The port comes up.
    PortUp(usize),
    /// The address of a site's NIC is removed.
    AddressGone(usize),
    /// The address returns, if the table has a free entry.
    AddressBack(usize),
    /// Packets from one site to another are lost.
    Cut(usize, usize),
    /// Packets arrive again.
    Mended(usize, usize),
    /// The process of a site is stopped: it accepts calls and never answers.
    Mute(usize),
    /// The process continues.
    GoesOn(usize),
    /// A client that says nothing holds the listener of a site, an existing Mooncake node.
    StrangerComes(usize),
    /// The client disconnects.
    StrangerLeaves(usize),
}

impl Disturbance {
    /// Whether it ends a disturbance, which costs no fault.
    pub const fn is_end(self) -> bool {
        matches!(
            self,
            Self::PortUp(_)
                | Self::AddressBack(_)
                | Self::Mended(..)
                | Self::GoesOn(_)
                | Self::StrangerLeaves(_)
        )
    }

    /// The site where it occurs.
    pub const fn site(self) -> usize {
        match self {
            Self::PortDown(site)
            | Self::PortUp(site)
            | Self::AddressGone(site)
            | Self::AddressBack(site)
            | Self::Cut(site, _)
            | Self::Mended(site, _)
            | Self::Mute(site)
            | Self::GoesOn(site)
            | Self::StrangerComes(site)
            | Self::StrangerLeaves(site) => site,
        }
    }
}

impl World {
    pub(crate) fn port_is_up(&self, site: usize) -> bool {
        self.fabric.verbs.reaches(site, site)
    }

    fn address_index(&self) -> usize {
        usize::from(self.setup.devices.profile.gid_index.unwrap_or(0))
    }

    fn has_address(&self, site: usize) -> bool {
        self.fabric.verbs.nic(site).gids()[self.address_index()].is_some()
    }

    fn is_cut(&self, from: usize, to: usize) -> bool {
        self.fabric.verbs.is_cut(from, to)
    }

    /// Disturbances that may end.
    pub(crate) fn push_ends(&self, choices: &mut Vec<Choice>) {
        let mut free = |disturbance| {
            choices.push(Choice { action: Action::Disturb(disturbance), cost: 0 });
        };
        let faults = self.setup.faults;
        for site in 0..self.sites.len() {
            if faults.mute && self.mute.contains(&site) {
                free(Disturbance::GoesOn(site));
            }
            if faults.stranger && self.has_stranger(site) {
                free(Disturbance::StrangerLeaves(site));
            }
            if faults.port && !self.port_is_up(site) {
                free(Disturbance::PortUp(site));
            }
            if faults.address && !self.has_address(site) {
                free(Disturbance::AddressBack(site));
            }
            for to in (0..self.sites.len()).filter(|_| faults.partition) {
                if self.is_cut(site, to) {
                    free(Disturbance::Mended(site, to));
                }
            }
        }
    }

    /// Disturbances that may begin.
    pub(crate) fn push_disturbances(&self, choices: &mut Vec<Choice>) {
        let mut charged = |disturbance| {
            choices.push(Choice { action: Action::Disturb(disturbance), cost: 1 });
        };
        let faults = self.setup.faults;
        for site in 0..self.sites.len() {
            if faults.mute && !self.mute.contains(&site) && self.host(site) == site {
                charged(Disturbance::Mute(site));
            }
            if faults.stranger && self.is_old(site) && !self.has_stranger(site) {
                charged(Disturbance::StrangerComes(site));
            }
            if faults.port && self.port_is_up(site) {
                charged(Disturbance::PortDown(site));
            }
            if faults.address && self.has_address(site) {
                charged(Disturbance::AddressGone(site));
            }
            for to in (0..self.sites.len()).filter(|to| faults.partition && *to != site) {
                if !self.is_cut(site, to) && self.are_joined(site, to) {
                    charged(Disturbance::Cut(site, to));
                }
            }
        }
    }

    /// Whether the action needs a stopped process.
    pub(crate) fn stopped(&self, action: &Action) -> bool {
        let by_process = matches!(
            action,
            Action::Command(_)
                | Action::Answer(_)
                | Action::Operation(_)
                | Action::FailOperation(_)
                | Action::StallOperation(_)
                | Action::FailStep(..)
                | Action::Timer(..)
                | Action::Broken(..)
                | Action::Completion(_)
                | Action::Submit(_)
                | Action::Cancel(_)
                | Action::Deadline(_)
                | Action::Probe(..)
                | Action::TargetTimer(..)
        );
        by_process && self.mute.contains(&self.host(self.actor(action)))
    }

    pub(crate) fn disturb(&mut self, disturbance: Disturbance) {
        let verbs = &mut self.fabric.verbs;
        match disturbance {
            Disturbance::PortDown(site) => verbs.set_port(site, false),
            Disturbance::PortUp(site) => verbs.set_port(site, true),
            Disturbance::AddressGone(site) => {
                let index = self.address_index();
                self.fabric.verbs.remove_gid(site, index);
            }
            Disturbance::AddressBack(site) => self.return_address(site),
            Disturbance::Cut(from, to) => verbs.cut(from, to),
            Disturbance::Mended(from, to) => verbs.mend(from, to),
            Disturbance::Mute(site) => self.mute.push(site),
            Disturbance::GoesOn(site) => self.mute.retain(|mute| *mute != site),
            Disturbance::StrangerComes(site) => self.set_stranger(site, true),
            Disturbance::StrangerLeaves(site) => self.set_stranger(site, false),
        }
        self.mute.sort_unstable();
        for site in 0..self.sites.len() {
            while self.fabric.verbs.next_event(site).is_some() {}
        }
    }

    fn return_address(&mut self, site: usize) {
        let index = self.address_index();
        let (kind, version) =
            self.setup.devices.profile.gids.get(index).copied().unwrap_or((GidKind::Ipv4, 2));
        let gid = crate::verbs::Gid { kind, host: site as u16, version };
        self.fabric.verbs.add_gid(site, gid);
    }

    pub(crate) fn describe_disturbance(&self, disturbance: Disturbance) -> String {
        let name = |site: usize| self.describe_site(site);
        match disturbance {
            Disturbance::PortDown(site) => format!("the port of {} goes down", name(site)),
            Disturbance::PortUp(site) => format!("the port of {} comes up", name(site)),
            Disturbance::AddressGone(site) => format!("{} loses its address", name(site)),
            Disturbance::AddressBack(site) => format!("{} has its address again", name(site)),
            Disturbance::Cut(from, to) => {
                format!("what {} sends {} is lost from now on", name(from), name(to))
            }
            Disturbance::Mended(from, to) => {
                format!("what {} sends {} arrives again", name(from), name(to))
            }
            Disturbance::Mute(site) => format!("the process of {} is stopped", name(site)),
            Disturbance::GoesOn(site) => format!("the process of {} goes on", name(site)),
            Disturbance::StrangerComes(site) => {
                format!("a client that says nothing holds the listener of {}", name(site))
            }
            Disturbance::StrangerLeaves(site) => {
                format!("the client that said nothing to {} is gone", name(site))
            }
        }
    }
}
