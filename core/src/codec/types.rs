//! The words of the types that cross the border of a node.

use super::{Code, CodeError, Reader, TextKind, Writer};
use crate::identity::{Incarnation, Lifecycle, NicPath, NodeName, Pair};
use crate::node::{
    CallFailure, CallToken, Counters, Event, Failure, Input, Limits, NodeConfig, Output, StateKind,
    TimerKind, Timing, Trigger,
};
use crate::time::{Duration, Instant};
use crate::transport::{Operation, OperationId, OperationKind, Outcome, Side, TransportError};
use crate::wire::{Body, Message, Op, PlainMessage, Refusal, RefusalReason};
use crate::{code_enum, code_structs};

macro_rules! code_wrapped {
    ($($type:ident),*) => {
        $(impl Code for $type {
            fn write(&self, to: &mut Writer) {
                self.0.write(to);
            }
            fn read(from: &mut Reader<'_>) -> Result<Self, CodeError> {
                Code::read(from).map(Self)
            }
        })*
    };
}

code_wrapped!(Lifecycle, Instant, Duration, CallToken);

impl Code for Incarnation {
    fn write(&self, to: &mut Writer) {
        to.word(&self.to_hex());
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, CodeError> {
        let word = from.word("an incarnation")?;
        let known = Self::from_hex(word).filter(|incarnation| incarnation.to_hex() == word);
        known.ok_or_else(|| from.unexpected("an incarnation", word))
    }
}

impl Code for NodeName {
    fn write(&self, to: &mut Writer) {
        to.text(self.as_str());
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, CodeError> {
        let text = from.text(TextKind::Name)?;
        Self::new(&text).map_err(|_| from.unexpected("a name", &text))
    }
}

impl Code for Body {
    fn write(&self, to: &mut Writer) {
        let Self { queue_pairs, psns, gid, lid, mtu, rd_atomic, token, address } = self;
        queue_pairs.write(to);
        psns.write(to);
        to.text(gid);
        for number in [lid, mtu, rd_atomic] {
            number.write(to);
        }
        to.text(token);
        to.text(address);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, CodeError> {
        Ok(Self {
            queue_pairs: Code::read(from)?,
            psns: Code::read(from)?,
            gid: from.text(TextKind::Gid)?,
            lid: Code::read(from)?,
            mtu: Code::read(from)?,
            rd_atomic: Code::read(from)?,
            token: from.text(TextKind::Token)?,
            address: from.text(TextKind::Address)?,
        })
    }
}

code_structs! {
    NicPath { node, nic }
    Pair { incarnation, lifecycle }
    OperationId { lifecycle, kind }
    TransportError { side, call, code, detail }
    Refusal { reason, detail }
    PlainMessage { from, to, body, ready, rejected }
    Message { op, from, to, sender, echo, body, refusal }
    NodeConfig { path, incarnation, seed, limits, timing }
    Limits {
        peers_max, lifecycles_max, answers_held_max, requests_max, readies_max, retires_max,
        quiesces_max, opens_max
    }
    Timing {
        request_retry, ready_retry, half_open, operation, quiesce_retry, drain, room, backoff
    }
    Counters { ignored, refused, rejected, published, ended, undeclared, transitions }
}

code_enum!(OperationKind { BringUp, Wire, Prove, Drain, Retire });
code_enum!(Operation {
    BringUp { lifecycle, peer, skip },
    Wire { local, remote, body },
    Prove { lifecycle },
    Drain { lifecycle },
    Retire { lifecycle },
});
code_enum!(Outcome { BroughtUp(body), Wired, Proven, Drained, Retired, Failed(error) });
code_enum!(Side { Local, Peer, Configuration, Protection });
code_enum!(Op { Request, Reply, Ready, Ack, Quiesce, Retired, Refuse });
code_enum!(RefusalReason {
    Gone,
    Superseded,
    Busy,
    Starting,
    Configuration,
    Protection,
    NameConflict,
    Unproven
});
code_enum!(CallFailure { Refused, Unreachable, TimedOut, Broken });
code_enum!(Input {
    Open(peer),
    Close(peer),
    Release(peer),
    CallReceived { token, message },
    CallAnswered(message),
    PlainCallReceived { token, message },
    PlainCallAnswered { lifecycle, message },
    CallFailed { lifecycle, failure },
    OperationDone { id, outcome },
    LaneFailed { lifecycle, error },
});
code_enum!(Output {
    Call(message),
    Answer { token, message },
    PlainAnswer { token, message },
    Operate(operation),
    Publish { local, remote, peer },
    Revoke(lifecycle),
    Event(event),
});
code_enum!(Failure {
    Call(failure),
    Refused(refusal),
    Transport(error),
    Silent,
    HalfOpen,
    OperationOverdue,
    Superseded,
    Closed,
    Evicted,
    Quiesced,
    DrainOverdue,
    Limit(name),
});
code_enum!(Event {
    OpenFailed { peer, failure },
    Ended { peer, lifecycle, failure },
    PeerRestarted { peer, old, new },
    RetireFailed { peer, lifecycle, error },
    RetireOverdue { peer, lifecycle },
    RetireForced { peer, lifecycle },
    PeerForgotten { peer },
    Undeclared { lifecycle, from, trigger },
    NameConflict { peer, live, other },
});
code_enum!(TimerKind {
    Operation,
    RequestRetry,
    HalfOpen,
    ReadyRetry,
    Backoff,
    RetireRetry,
    Drain,
    QuiesceRetry,
    Room
});
code_enum!(StateKind {
    Raising,
    Announced,
    Fencing,
    Wiring,
    Wired,
    Established,
    Proving,
    Weak,
    Draining,
    Quiescing,
    Retiring
});
code_enum!(Trigger {
    Raised,
    BroughtUp,
    Echoed,
    Fenced,
    Wired,
    PeerWired,
    Failed,
    Refused,
    Silent,
    HalfOpen,
    Overdue,
    Superseded,
    Closed,
    Evicted,
    Quiesced,
    Listed,
    Proven,
    Drained,
    Agreed,
    Retired,
    RetireAgain
});
