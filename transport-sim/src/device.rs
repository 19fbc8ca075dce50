//! Disturbances of ports, addresses, paths and processes, and their repair.

use crate::action::{Action, Choice};
use crate::verbs::GidKind;
use crate::world::World;

/// Start or end of a disturbance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disturbance {
    /// The disturbed subject.
    pub subject: Subject,
    /// The site where it occurs.
    pub site: usize,
    /// Whether the disturbance ends, which costs no fault.
    pub is_end: bool,
}

/// The subject of a disturbance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The process is stopped: it accepts calls and never answers.
    Process,
    /// A silent client blocks the listener of a Mooncake node.
    Listener,
    /// The port is down.
    Port,
    /// The address is removed; it returns if the table has a free entry.
    Address,
    /// Packets to this site are lost.
    Path(usize),
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

    /// Returns everything at a site that the setup may disturb, in the order of choices.
    fn subjects(&self) -> impl Iterator<Item = Subject> + use<> {
        let faults = self.setup.faults;
        let paths = (0..self.sites.len()).map(move |to| (faults.partition, Subject::Path(to)));
        let of_site = [
            (faults.mute, Subject::Process),
            (faults.stranger, Subject::Listener),
            (faults.port, Subject::Port),
            (faults.address, Subject::Address),
        ];
        of_site.into_iter().chain(paths).filter_map(|(on, subject)| on.then_some(subject))
    }

    fn is_disturbed(&self, site: usize, subject: Subject) -> bool {
        match subject {
            Subject::Process => self.mute.contains(&site),
            Subject::Listener => self.has_stranger(site),
            Subject::Port => !self.port_is_up(site),
            Subject::Address => !self.has_address(site),
            Subject::Path(to) => self.fabric.verbs.is_cut(site, to),
        }
    }

    fn has_subject(&self, site: usize, subject: Subject) -> bool {
        match subject {
            Subject::Process => self.host(site) == site,
            Subject::Listener => self.is_old(site),
            Subject::Port | Subject::Address => true,
            Subject::Path(to) => to != site && self.are_joined(site, to),
        }
    }

    /// Adds the start or the end of every possible disturbance.
    pub(crate) fn push_disturbances(&self, is_end: bool, choices: &mut Vec<Choice>) {
        if self.subjects().next().is_none() {
            return;
        }
        for site in 0..self.sites.len() {
            for subject in self.subjects() {
                if self.is_disturbed(site, subject) == is_end
                    && (is_end || self.has_subject(site, subject))
                {
                    let action = Action::Disturb(Disturbance { subject, site, is_end });
                    choices.push(Choice { action, cost: u32::from(!is_end) });
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
                | Action::Frame(..)
                | Action::Piece(..)
                | Action::ReadEnd(..)
                | Action::SeeDeath(..)
                | Action::HeldRetire(_)
                | Action::Unregister(_)
                | Action::Notice(..)
                | Action::RepeatRequest(_)
                | Action::ForgeRequest(..)
                | Action::DialOverdue(..)
        );
        by_process && self.mute.contains(&self.host(self.actor(action)))
    }

    pub(crate) fn disturb(&mut self, disturbance: Disturbance) {
        let Disturbance { subject, site, is_end } = disturbance;
        debug_assert!(
            matches!(subject, Subject::Process | Subject::Listener) || self.fabric.has_devices(),
            "the setup has devices where {subject:?} may be disturbed"
        );
        let verbs = &mut self.fabric.verbs;
        match subject {
            Subject::Process if is_end => self.mute.retain(|mute| *mute != site),
            Subject::Process => self.mute.push(site),
            Subject::Listener => self.set_stranger(site, !is_end),
            Subject::Port => verbs.set_port(site, is_end),
            Subject::Address if is_end => self.return_address(site),
            Subject::Address => {
                let index = self.address_index();
                self.fabric.verbs.remove_gid(site, index);
            }
            Subject::Path(to) if is_end => verbs.mend(site, to),
            Subject::Path(to) => verbs.cut(site, to),
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
        let name = self.describe_site(disturbance.site);
        match (disturbance.subject, disturbance.is_end) {
            (Subject::Port, false) => format!("the port of {name} goes down"),
            (Subject::Port, true) => format!("the port of {name} comes up"),
            (Subject::Address, false) => format!("{name} loses its address"),
            (Subject::Address, true) => format!("{name} has its address again"),
            (Subject::Path(to), is_end) => {
                let end = if is_end { "arrives again" } else { "is lost from now on" };
                format!("what {name} sends {} {end}", self.describe_site(to))
            }
            (Subject::Process, false) => format!("the process of {name} is stopped"),
            (Subject::Process, true) => format!("the process of {name} goes on"),
            (Subject::Listener, false) => {
                format!("a client that says nothing holds the listener of {name}")
            }
            (Subject::Listener, true) => {
                format!("the client that said nothing to {name} is gone")
            }
        }
    }
}
