//! Authentication of nodes by shared keys or certificates, without I/O and without cryptography.
//!
//! [`AuthPolicy`] states whom a node accepts. [`Inbound`] and [`Outbound`] are the two ends of one
//! connection: the caller reports what it could open or verify, and they decide what follows.
//! [`PeerProofs`] says whose lanes end with a key or certificate that is withdrawn, [`ProofLooks`] when that is
//! looked at.
//! [`LaneProofs`] binds a lane over TCP to the channel that announced its secret. The caller owns the
//! cipher; `sim` runs the same machines over symbolic messages and an attacker.

mod certificate;
mod lane;
mod looks;
mod message;
mod policy;
mod proven;
mod session;
#[cfg(test)]
mod tests;

pub use certificate::{CertificateFault, certified_part, spiffe_domain};
pub use lane::{
    LANE_NONCE_BYTES, LANE_SECRET_BYTES, LaneEnd, LaneProofs, PROOF_TEXT_BYTES, SealingMismatch,
    check_sealing,
};
pub use looks::{ProofLook, ProofLooks, RECHECK_INTERVAL};
pub use message::{
    AUTH_MAGIC, AUTH_MESSAGE_BYTES_MAX, AUTH_TLS, AUTH_VERSION, AuthHello, AuthHelloHead,
    AuthMessageError,
};
pub use policy::{
    AuthMethod, AuthPolicy, Identity, KEY_ID_BYTES_MAX, KEY_NAMES_MAX, KEYS_MAX, KeyRule,
    KeyRuleError, NamePattern, Proof,
};
pub use proven::{NAMES_PER_PROOF_MAX, PROVEN_MAX, PeerProofs};
pub use session::{AnswerSeen, AuthFailure, AuthRefusal, Inbound, Outbound};
