//! Handles of lanes, for posting without a look-up.

use super::lane::Lane;
use handfast_transport::{LaneHandle, Posting};
use std::sync::Weak;

/// A lane, for as long as its NIC has it.
pub(super) struct Handle(pub(super) Weak<Lane>);

impl LaneHandle for Handle {
    fn post(&self, postings: &mut Vec<Posting>) -> bool {
        let lane = self.0.upgrade();
        lane.inspect(|lane| lane.post(postings)).is_some()
    }
}
