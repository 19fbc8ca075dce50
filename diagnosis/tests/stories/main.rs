//! The catalogue for its users: recognised messages, current pages.

mod corpus;
mod coverage;
mod doctor;
#[path = "../../../transport-sim/tests/stories/helpers.rs"]
#[allow(dead_code, reason = "the fabric's own stories use all of it")]
mod fabric;
mod generated;
mod noise;
mod scene;
mod simulated;
