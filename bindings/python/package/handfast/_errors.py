"""Exceptions of handfast."""

from __future__ import annotations


class HandfastError(Exception):
    """A failed call.

    After it nothing of the engine reads or writes the caller's local buffers, but after ``InUse`` of a
    transfer: the engine was closed, and a device keeps them. ``remote`` tells of the peer's memory:
    ``untouched``: no byte of the call reached it; ``fenced``: bytes may have, and none will any more;
    ``indeterminate``: bytes may still land, until ``Peer.fence`` returns.
    """

    def __init__(
        self, text: str, side: str, stage: str, id: str | None, remote: str, code: int
    ) -> None:
        super().__init__(text)
        #: ``local`` or ``peer``: the side at fault.
        self.side = side
        #: The stage that failed.
        self.stage = stage
        #: The id for ``handfast explain``, or None.
        self.id = id
        #: State of the peer's memory.
        self.remote = remote
        #: The negative code of Mooncake's functions.
        self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        arguments = (str(self), self.side, self.stage, self.id, self.remote, self.code)
        return type(self), arguments


class TransferTimeout(HandfastError, TimeoutError):
    """The deadline passed."""


class PeerLost(HandfastError, ConnectionError):
    """The peer cannot be reached, or was lost during the transfer."""


class PeerRestarted(PeerLost):
    """The peer restarted. Its memory has new addresses: ask it for them."""


class Cancelled(HandfastError):
    """The transfer was cancelled."""


class Closed(HandfastError):
    """The engine is closed, or was closed during the transfer."""


class NotRegistered(HandfastError, LookupError):
    """No registered local memory holds the bytes."""


class NotServed(HandfastError, LookupError):
    """The peer has not registered the memory, or does not permit the access."""


class Overlap(HandfastError, ValueError):
    """Some of the bytes are registered already."""


class InUse(HandfastError):
    """Transfers still use the memory."""


class LimitReached(HandfastError):
    """A limit is reached; the text names it."""


class InvalidArgument(HandfastError, ValueError):
    """An argument is invalid."""


class Forked(HandfastError, RuntimeError):
    """The engine belongs to the parent process."""


_KINDS = {
    "timeout": TransferTimeout,
    "peer-lost": PeerLost,
    "peer-restarted": PeerRestarted,
    "cancelled": Cancelled,
    "closed": Closed,
    "not-registered": NotRegistered,
    "not-served": NotServed,
    "overlap": Overlap,
    "in-use": InUse,
    "limit": LimitReached,
    "argument": InvalidArgument,
    "no-such-batch": InvalidArgument,
    "unfinished": InUse,
    "forked": Forked,
}


def make(
    kind: str, text: str, side: str, stage: str, id: str | None, remote: str, code: int
) -> HandfastError:
    """Return the exception of a kind; called by the extension module."""
    return _KINDS.get(kind, HandfastError)(text, side, stage, id, remote, code)
