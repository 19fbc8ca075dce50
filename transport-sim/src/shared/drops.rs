//! Regions that their owners unregister. Their memory is used for something else as soon as no peer
//! reaches it.

use crate::action::{Action, Choice};
use crate::data::{REUSED, WINDOW};
use crate::verbs::Keys;
use crate::world::{Step, World};
use handfast_core::sharing::{Denial, Offered};

/// State of the region that peers may access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Window {
    /// Peers may access it.
    Registered,
    /// It is unregistered, and a peer may still reach it.
    Dropped,
    /// It is used for something else.
    GivenBack,
}

impl World {
    /// Adds the unregistration that the setup permits.
    pub(crate) fn push_drop(&self, choices: &mut Vec<Choice>) {
        let Some((setup, data)) = self.transfer_setup().zip(self.data.as_ref()) else { return };
        if let Some(site) = setup.dropped_by.filter(|_| !data.has_dropped) {
            choices.push(Choice { action: Action::Unregister(site), cost: 0 });
        }
    }

    /// Unregisters the window of a site.
    pub(crate) fn unregister(&mut self, site: usize, step: &mut Step) {
        let Some(data) = self.data_mut() else { return };
        data.has_dropped = true;
        data.sites[site].state = Window::Dropped;
        let keys = data.sites[site].window;
        if !self.is_shared() {
            // From now on the device refuses what arrives.
            let _ = self.fabric.verbs.deregister(site, keys);
        }
        let of_site = self.channels.ends.iter().filter(|end| end.lane.0 == site);
        let lanes: Vec<_> = of_site.map(|end| end.lane).collect();
        for lane in lanes {
            self.with_machine(lane, step, |machine| machine.revoke(u64::from(keys.rkey)));
        }
        self.give_back(site);
    }

    /// Uses dropped memory for something else, once no grant of it is left.
    pub(super) fn give_back(&mut self, site: usize) {
        let is_dropped =
            self.data.as_ref().is_some_and(|data| data.sites[site].state == Window::Dropped);
        let of_site = |end: &&super::End| end.lane.0 == site;
        let mut ends = self.channels.ends.iter().filter(of_site);
        if !is_dropped || ends.any(|end| !end.granted.is_empty()) {
            return;
        }
        let Some(data) = self.data_mut() else { return };
        data.sites[site].state = Window::GivenBack;
        let keys = data.sites[site].window;
        if let Some(bytes) = self.fabric.verbs.memory_mut(site, keys) {
            bytes.fill(REUSED);
        }
    }

    /// The region of a key, as its owner offers it.
    pub(super) fn offer(&self, site: usize, key: u64) -> Result<Offered, Denial> {
        let data = self.data.as_ref().ok_or(Denial::UnknownKey)?;
        let of_site = &data.sites[site];
        let is_known = of_site.state == Window::Registered && key == u64::from(of_site.window.rkey);
        let bytes = self.fabric.verbs.memory(site, of_site.window).filter(|_| is_known);
        let bytes = bytes.ok_or(Denial::UnknownKey)?.len() as u64;
        Ok(Offered { address: WINDOW, bytes, readable: true, writable: true })
    }

    pub(super) fn data_keys(&self, site: usize) -> Option<(Keys, Keys)> {
        self.data.as_ref().map(|data| (data.sites[site].window, data.sites[site].local))
    }

    pub(super) fn window_bytes(&self, site: usize) -> Option<Vec<u8>> {
        let (window, _) = self.data_keys(site)?;
        self.fabric.verbs.memory(site, window).map(<[u8]>::to_vec)
    }

    /// Returns a site whose dropped memory is not given back, although no peer can reach it: the
    /// connection to a live process that broke is the one reason to keep it.
    pub fn kept_memory(&self) -> Option<usize> {
        let data = self.data.as_ref()?;
        let kept = |site: &usize| data.sites[*site].state == Window::Dropped;
        let excused = |site: usize| {
            let mut ends = self.channels.ends.iter().filter(|end| end.lane.0 == site);
            ends.any(|end| {
                end.is_cut
                    && end.machine.is_unproven()
                    && self.lives(end.peer, end.remote.incarnation)
            })
        };
        (0..self.sites.len()).filter(kept).find(|site| !excused(*site))
    }
}
