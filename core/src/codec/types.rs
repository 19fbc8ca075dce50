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
use alloc::string::String;

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
        (queue_pairs.write(to), psns.write(to));
        to.text(gid);
        (lid.write(to), mtu.write(to), rd_atomic.write(to));
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

impl Code for TransportError {
    fn write(&self, to: &mut Writer) {
        let Self { side, call, code, detail } = self;
        side.write(to);
        to.text(call);
        code.write(to);
        to.text(detail);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, CodeError> {
        Ok(Self {
            side: Code::read(from)?,
            call: from.lasting()?,
            code: Code::read(from)?,
            detail: from.text(TextKind::Detail)?,
        })
    }
}

/// Words for people, as a value of their own.
struct Detail(String);

impl Code for Detail {
    fn write(&self, to: &mut Writer) {
        to.text(&self.0);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, CodeError> {
        from.text(TextKind::Detail).map(Self)
    }
}

impl Code for Refusal {
    fn write(&self, to: &mut Writer) {
        self.reason.write(to);
        to.text(&self.detail);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, CodeError> {
        Ok(Self { reason: Code::read(from)?, detail: Detail::read(from)?.0 })
    }
}

impl Code for PlainMessage {
    fn write(&self, to: &mut Writer) {
        let Self { from, to: addressed, body, ready, rejected } = self;
        (from.write(to), addressed.write(to), body.write(to), ready.write(to));
        rejected.clone().map(Detail).write(to);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, CodeError> {
        Ok(Self {
            from: Code::read(from)?,
            to: Code::read(from)?,
            body: Code::read(from)?,
            ready: Code::read(from)?,
            rejected: Option::<Detail>::read(from)?.map(|detail| detail.0),
        })
    }
}

impl Code for Failure {
    fn write(&self, to: &mut Writer) {
        match self {
            Self::Call(failure) => (to.word("Call"), failure.write(to)).1,
            Self::Refused(refusal) => (to.word("Refused"), refusal.write(to)).1,
            Self::Transport(error) => (to.word("Transport"), error.write(to)).1,
            Self::Silent => to.word("Silent"),
            Self::HalfOpen => to.word("HalfOpen"),
            Self::OperationOverdue => to.word("OperationOverdue"),
            Self::Superseded => to.word("Superseded"),
            Self::Closed => to.word("Closed"),
            Self::Evicted => to.word("Evicted"),
            Self::Quiesced => to.word("Quiesced"),
            Self::DrainOverdue => to.word("DrainOverdue"),
            Self::Limit(name) => (to.word("Limit"), to.text(name)).1,
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, CodeError> {
        let expected = "a variant of Failure";
        Ok(match from.word(expected)? {
            "Call" => Self::Call(Code::read(from)?),
            "Refused" => Self::Refused(Code::read(from)?),
            "Transport" => Self::Transport(Code::read(from)?),
            "Silent" => Self::Silent,
            "HalfOpen" => Self::HalfOpen,
            "OperationOverdue" => Self::OperationOverdue,
            "Superseded" => Self::Superseded,
            "Closed" => Self::Closed,
            "Evicted" => Self::Evicted,
            "Quiesced" => Self::Quiesced,
            "DrainOverdue" => Self::DrainOverdue,
            "Limit" => Self::Limit(from.lasting()?),
            word => return Err(from.unexpected(expected, word)),
        })
    }
}

code_structs! {
    NicPath { node, nic }
    Pair { incarnation, lifecycle }
    OperationId { lifecycle, kind }
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
