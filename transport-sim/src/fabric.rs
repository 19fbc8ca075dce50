//! The truth: which queue pairs exist and which is wired to which.

use handfast_core::{Lifecycle, Pair};

/// Where a queue pair was wired to: a number at a site, and the lifecycle it was believed to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The site.
    pub site: usize,
    /// The queue-pair number there.
    pub number: u32,
    /// Whom the wiring side believes to reach.
    pub believed: Pair,
}

/// One queue pair. Numbers are the smallest free ones of a site: they are reborn after a retire
/// and after a restart, as those of real devices may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueuePair {
    /// The site that owns it.
    pub site: usize,
    /// Its number.
    pub number: u32,
    /// Its lifecycle.
    pub lifecycle: Lifecycle,
    /// Where it is wired to, once it is.
    pub target: Option<Target>,
    /// It is in the error state.
    pub broken: bool,
    /// It was published: work may be outstanding on it until it is destroyed.
    pub published: bool,
    /// It was revoked after that.
    pub revoked: bool,
    /// What was posted on it has ended, after it was revoked.
    pub drained: bool,
}

/// The queue pairs of all sites.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fabric {
    pub(crate) table: Vec<QueuePair>,
}

impl Fabric {
    pub(crate) fn create(&mut self, site: usize, lifecycle: Lifecycle) -> u32 {
        let taken =
            |number: u32| self.table.iter().any(|qp| (qp.site, qp.number) == (site, number));
        let number = (1..).find(|number| !taken(*number)).unwrap_or(u32::MAX);
        self.insert(site, number, lifecycle);
        number
    }

    fn insert(&mut self, site: usize, number: u32, lifecycle: Lifecycle) {
        self.table.push(QueuePair {
            site,
            number,
            lifecycle,
            target: None,
            broken: false,
            published: false,
            revoked: false,
            drained: false,
        });
        self.table.sort_by_key(|qp| (qp.site, qp.number));
    }

    /// As [`Fabric::create`], with a number that nobody aims at: who skips a random count of queue
    /// pairs has that luck, and who has not is found out by the proof.
    pub(crate) fn create_fresh(&mut self, site: usize, lifecycle: Lifecycle) -> u32 {
        let aimed = |number: u32| {
            let aims =
                |qp: &QueuePair| qp.target.is_some_and(|to| (to.site, to.number) == (site, number));
            self.at(site, number).is_some() || self.table.iter().any(aims)
        };
        let number = (1..).find(|number| !aimed(*number)).unwrap_or(u32::MAX);
        self.insert(site, number, lifecycle);
        number
    }

    pub(crate) fn of(&self, site: usize, lifecycle: Lifecycle) -> Option<&QueuePair> {
        self.table.iter().find(|qp| qp.site == site && qp.lifecycle == lifecycle)
    }

    pub(crate) fn of_mut(&mut self, site: usize, lifecycle: Lifecycle) -> Option<&mut QueuePair> {
        self.table.iter_mut().find(|qp| qp.site == site && qp.lifecycle == lifecycle)
    }

    pub(crate) fn destroy(&mut self, site: usize, lifecycle: Lifecycle) {
        self.table.retain(|qp| qp.site != site || qp.lifecycle != lifecycle);
    }

    pub(crate) fn forget_site(&mut self, site: usize) {
        self.table.retain(|qp| qp.site != site);
    }

    pub(crate) fn at(&self, site: usize, number: u32) -> Option<&QueuePair> {
        self.table.iter().find(|qp| (qp.site, qp.number) == (site, number))
    }

    /// Bytes flow: each is wired to the other's number and neither is in error.
    pub(crate) fn intact(&self, qp: &QueuePair) -> bool {
        let Some(target) = qp.target else { return false };
        let back = self.at(target.site, target.number);
        let returns = |back: &QueuePair| {
            !back.broken
                && back.target.is_some_and(|to| (to.site, to.number) == (qp.site, qp.number))
        };
        !qp.broken && back.is_some_and(returns)
    }
}
