//! Exploration of the shipping authentication of `handfast_core::auth`: nodes with keys or certificates,
//! plain ones and rotating ones, over symbolic messages, and an attacker who repeats, reflects, drops and forges them.
//!
//! The machines decide whom a node accepts; the world knows who holds which key or certificate
//! and who sent what.

mod certificates;
mod events;
mod identities;
mod oracle;
mod sealing;
mod setup;
mod term;
mod withdrawn;
mod world;

pub use events::AuthEvent;
pub use oracle::{AuthOracle, AuthViolation};
pub use setup::{AUTH_VARIANTS, AuthBackend, AuthEntry, AuthScenario, AuthSetup, NodePlan};
pub use term::Certificate;
pub use world::AuthWorld;
