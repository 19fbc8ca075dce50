//! Symbolic messages. A sealed one opens for the holder of its secret alone.

use handfast_core::auth::{LaneEnd, PROOF_TEXT_BYTES};

/// The secret of a key, by number.
pub(super) type Secret = u8;
/// A number that nobody drew before.
pub(super) type Fresh = u8;
/// A run of a node: its place in the world's list.
pub(super) type Run = usize;

/// The key of a session of TLS, which has no shared secret.
pub(super) const TLS: Secret = 0;

/// A certificate, which its holder alone can prove: the node that it names, its authority, and a
/// number that differs from those before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Certificate {
    /// The node that it names, which has its private key.
    pub holder: usize,
    /// The authority that issued it.
    pub authority: u8,
    /// Number of the certificate.
    pub serial: u8,
}

/// The key of a session: both ends have contributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Session {
    pub(super) key: Secret,
    pub(super) dialling: Fresh,
    pub(super) listening: Fresh,
}

/// The content of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Content {
    /// A request for a lane, in the name of a run, which encrypts its lanes or does not.
    Open { from: Run, seals: bool },
    /// The lane and its secret, of a node that encrypts its lanes or does not.
    Opened { lane: usize, secret: Fresh, seals: bool },
    /// One of the two encrypts its lanes, or one cannot read that the other does.
    Differs,
}

/// A proof: what it authenticates, and the secret that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Proof {
    pub(super) secret: Fresh,
    pub(super) text: [u8; PROOF_TEXT_BYTES],
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Term {
    Plain,
    PlainAnswer,
    Hello {
        key: Secret,
        number: Fresh,
        from: Run,
        to: Option<usize>,
    },
    Answer {
        session: Session,
        from: Run,
    },
    Refusal,
    /// The first message of TLS.
    TlsHello {
        number: Fresh,
    },
    /// The certificate of the listening side, proven for this session.
    TlsAnswer {
        session: Session,
        certificate: Certificate,
    },
    /// The certificate of the dialling side, proven for this session, and its hello.
    TlsFinish {
        session: Session,
        certificate: Certificate,
        from: Run,
        to: Option<usize>,
    },
    /// The answer to that hello.
    TlsWelcome {
        session: Session,
        from: Run,
    },
    Record {
        session: Session,
        end: LaneEnd,
        number: u8,
        content: Content,
    },
    LaneHello {
        lane: usize,
        number: Fresh,
        seals: bool,
    },
    Challenge {
        number: Fresh,
        proof: Proof,
    },
    Proof(Proof),
}
