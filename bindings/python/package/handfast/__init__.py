"""One-sided reads and writes between the registered memory of processes.

>>> import handfast
>>> owner, user = handfast.Engine(), handfast.Engine()
>>> cache, block = bytearray(1 << 20), bytearray(b"sixteen tokens")
>>> served, local = owner.register(cache), user.register(block)
>>> user.peer(owner.address).write(block, served.address + 8192)
>>> bytes(cache[8192:8206])
b'sixteen tokens'
>>> owner.close(); user.close()
"""

from __future__ import annotations as _annotations

import asyncio as _asyncio
import atexit as _atexit
import itertools as _itertools
import json as _json
import logging as _logging
import threading as _threading
from collections.abc import Generator as _Generator
from collections.abc import Mapping as _Mapping
from collections.abc import Sequence as _Sequence
from dataclasses import dataclass as _dataclass
from typing import Any as _Any
from typing import TypeAlias as _TypeAlias

from . import _buffers, _handfast, _waiting
from ._errors import (
    Cancelled,
    Closed,
    Forked,
    HandfastError,
    InUse,
    InvalidArgument,
    LimitReached,
    NotRegistered,
    NotServed,
    Overlap,
    PeerLost,
    PeerRestarted,
    TransferTimeout,
)
from ._handfast import Strided, __version__

__all__ = [
    "Cancelled",
    "Closed",
    "Engine",
    "Forked",
    "HandfastError",
    "InUse",
    "InvalidArgument",
    "LimitReached",
    "NotRegistered",
    "NotServed",
    "Overlap",
    "Peer",
    "PeerLost",
    "PeerRestarted",
    "Registration",
    "Segment",
    "Strided",
    "Transfer",
    "TransferTimeout",
    "__version__",
    "topology",
]

_log = _logging.getLogger("handfast")

#: A list of integers, or a contiguous or strided array of 64-bit ones: of numpy, or of the buffer
#: protocol.
_Numbers: _TypeAlias = "_Sequence[int] | _Any"
_Places: _TypeAlias = "_Numbers | Strided"
#: One length for each piece, or one for all.
_Lengths: _TypeAlias = "_Numbers | int"
#: A tensor of torch on the CPU or a CUDA device, an array of numpy, an object with
#: ``__cuda_array_interface__`` or ``__dlpack__``, or one of the buffer protocol.
_Buffer: _TypeAlias = _Any
#: A stream of CUDA: its number, a stream of torch, or an object with ``__cuda_stream__``.
_Stream: _TypeAlias = _Any
_Notify: _TypeAlias = "tuple[str, str] | None"
#: What peers may do, by a pattern of their names.
_Grants: _TypeAlias = "_Mapping[str, str]"

# Calls of daemon threads return before the interpreter ends.
_atexit.register(_handfast.close_all)


def topology() -> str:
    """Return the RDMA devices near each memory of this machine, as JSON in Mooncake's form."""
    return _handfast.local_topology()


@_dataclass(frozen=True)
class Segment:
    """Memory that a peer serves."""

    name: str
    #: First byte, in the peer's addresses.
    address: int
    #: Length in bytes.
    nbytes: int
    readable: bool
    writable: bool


#: Interval of looks at a transfer for whose end a loop has no descriptor, in seconds.
_LOOK_S = 0.01

#: Engines that were not closed and whose memory is in use, and their buffers.
_in_use: list[tuple[_handfast.Core, object]] = []


class Engine:
    """A node: it serves registered memory to peers, and reads and writes theirs.

    ``host`` is the host of this node's address, under which peers reach it. ``transport`` is ``tcp``,
    ``rdma``, ``shm``, or ``auto``: ``shm``, memory shared with processes of this host, else RDMA where
    both sides have it, else TCP. ``devices`` names RDMA devices: a list, or text
    with commas.
    ``metadata`` is a store in which nodes find each other by name: ``http://HOST:PORT/PATH``,
    ``etcd://HOST:PORT`` or ``redis://HOST:PORT/DATABASE``; ``host`` is then the node's whole name.
    Without one, nodes are found by address.
    ``metrics``, ``HOST:PORT``, serves metrics over HTTP there, and ``python -m handfast top`` shows them.
    ``regions_max`` is the maximum of registrations, 4,096 by default and at most 131,072: see the limits
    in docs/python.md before it is raised.

    ``auth``, ``psk:FILE`` or ``tls:DIRECTORY``, names keys or certificates: the engine then calls and accepts only nodes that prove one; or both
    with a space between: it accepts either and calls by the first. By
    default it is that of the variable HANDFAST_AUTH. Without keys every process that reaches the address may
    read and write the registered memory; with them, a machine that changes packets on the way still can,
    unless ``encrypt_lanes``, or HANDFAST_ENCRYPT_LANES=1, is set at both ends: bytes over TCP are then
    encrypted and authenticated, and no lane is over RDMA.

    ``accept_exposed_memory`` serves read-only memory, and keeps memory registered, also over devices whose
    driver lets every peer write to all of it: eRDMA in compat mode. ``accept_forked_memory`` registers memory
    with devices also where a fork gives registered pages away, before Linux 5.12, in a process that starts no
    children. HANDFAST_ACCEPT_EXPOSED_MEMORY=1 and HANDFAST_ACCEPT_FORKED_MEMORY=1 do the same for programs
    that cannot choose.

    ``rdma_cm``, or HANDFAST_RDMA_CM=1, connects RDMA queue pairs through the connection manager (librdmacm)
    also on RoCE and InfiniBand, at both ends; iWARP devices connect so in any case.

    ``administrators``, patterns of names in a list or in text with commas, are the peers that may list and change the grants of registered memory
    (``Peer.grants``, ``grant`` and ``revoke``). They need ``auth``, with keys whose lines name their holders:
    a holder of a key without names has any name, also that of an administrator.

    Calls may come from any number of threads. A process that was forked makes engines of its own.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        *,
        transport: str = "auto",
        devices: _Sequence[str] | str = (),
        metadata: str = "P2PHANDSHAKE",
        metrics: str | None = None,
        regions_max: int | None = None,
        auth: str | None = None,
        accept_exposed_memory: bool = False,
        accept_forked_memory: bool = False,
        encrypt_lanes: bool | None = None,
        rdma_cm: bool = False,
        administrators: _Sequence[str] | str = (),
    ) -> None:
        patterns = administrators.split(",") if isinstance(administrators, str) else administrators
        names = devices if isinstance(devices, str) else ",".join(devices)
        self._core = _handfast.Core(
            host,
            metadata,
            transport,
            names,
            True,
            metrics,
            regions_max,
            auth,
            accept_exposed_memory,
            accept_forked_memory,
            encrypt_lanes,
            rdma_cm,
            [pattern.strip() for pattern in patterns if pattern.strip()],
        )
        # The buffers of open registrations, by number: a registration refers to its engine, and the
        # engine not to it, so that an engine without users ends at once.
        self._buffers: dict[int, object] = {}
        self._numbers = _itertools.count()
        for warning in self._core.warnings:
            _log.warning(warning)

    @property
    def address(self) -> str:
        """The address of this node, ``host:port``."""
        return self._core.address

    def register(
        self, buffer: _Buffer, *, location: str = "*", grants: _Grants | None = None
    ) -> Registration:
        """Register a writable, contiguous buffer: a tensor of torch on the CPU or a CUDA device, an array
        of numpy, an object with ``__cuda_array_interface__`` or ``__dlpack__``, or any object of the buffer
        protocol. The buffer is kept alive until the registration is closed. ``location`` tells peers where
        it is, such as ``cuda:0`` or ``cpu:1``; ``*`` is where the driver or the kernel says it is.

        Every peer may read and write it, or with ``grants`` those whose names a pattern covers:
        ``{"decode-*": "read", "trainer-1": "read-write"}``. Patterns other than ``*`` need ``auth``,
        by which peers prove their names."""
        place = _buffers.locate(buffer)
        return self.register_address(
            place.address, place.nbytes, location=location, owner=place.owner, grants=grants
        )

    def register_address(
        self,
        address: int,
        nbytes: int,
        *,
        location: str = "*",
        owner: object = None,
        grants: _Grants | None = None,
    ) -> Registration:
        """Register memory by its address. It must stay valid until the registration is closed;
        ``owner`` is kept until then."""
        pairs = None if grants is None else list(grants.items())
        registration = Registration(self, address, nbytes)
        number = registration._number
        try:
            self._core.register(address, nbytes, location, pairs, (self._buffers, number, owner))
        except BaseException:
            # An exception of a signal's handler comes right after the registration.
            if number in self._buffers:
                registration._end()
            raise
        return registration

    def peer(self, address: str) -> Peer:
        """Return the peer at an address, ``host:port``, or of a name in the metadata store."""
        return Peer(self, address)

    def notifications(self) -> list[tuple[str, str]]:
        """Return the notifications received since the last call, as pairs of name and message."""
        return self._core.take_notifications()

    @property
    def metrics_address(self) -> str | None:
        """The address at which metrics are served, or None."""
        return self._core.metrics_address

    def metrics(self) -> dict[str, _Any]:
        """Return the counters of the engine and of each peer, as docs/schema/state.txt has them."""
        state: dict[str, _Any] = _json.loads(self._core.metrics())
        return state

    def openmetrics(self) -> str:
        """Return the metrics as text for Prometheus, as docs/schema/metrics.txt has them."""
        return self._core.openmetrics()

    def close(self) -> None:
        """End every transfer, and wait until nothing touches memory any more. Raises InUse if that
        lasts; buffers are kept alive then, and the call may be repeated."""
        self._core.close()
        self._buffers.clear()

    def __del__(self) -> None:
        core = getattr(self, "_core", None)
        if core is None:
            return  # It did not start.
        try:
            core.close()
        except HandfastError as error:
            # Before the buffers go: a peer or a device may still write to them.
            _in_use.append((core, getattr(self, "_buffers", None)))
            _log.warning("an engine ended without close(), and keeps its buffers: %s", error)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<handfast.Engine at {self.address}>"


class Registration:
    """Registered memory. Closing it waits until no transfer uses the memory."""

    def __init__(self, engine: Engine, address: int, nbytes: int) -> None:
        self._engine = engine
        self._number = next(engine._numbers)
        #: Address of the first byte, for peers.
        self.address = address
        #: Length in bytes.
        self.nbytes = nbytes

    def grants(self) -> dict[str, str]:
        """Return what peers may do, by the pattern of their names: ``read``, ``write`` or
        ``read-write``."""
        return dict(self._engine._core.grants(self.address))

    def grant(self, peers: str, access: str) -> None:
        """Let the peers whose names a pattern covers ``read``, ``write`` or ``read-write``, besides
        what they may already. They find it with their next transfer."""
        self._engine._core.grant(self.address, peers, access)

    def revoke(self, peers: str, access: str = "read-write") -> None:
        """Take a permission from a pattern of names; another pattern that covers a peer keeps its own.
        In force on return, also for transfers under way."""
        self._engine._core.revoke(self.address, peers, access)

    def close(self) -> None:
        """End the registration. Raises InUse while transfers use the memory."""
        if self._number not in self._engine._buffers:
            text = "the registration is closed"
            raise NotRegistered(text, "local", "registering memory", None, "untouched", -3)
        self._engine._core.unregister(self.address)
        self._engine._buffers.pop(self._number, None)

    def _end(self) -> None:
        """End a registration that its caller does not get. Memory in use stays registered, and its
        buffer with the engine."""
        try:
            self.close()
        except HandfastError as error:
            _log.warning("an interrupted registration stays until the engine is closed: %s", error)

    def __enter__(self) -> Registration:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<handfast.Registration of {self.nbytes} bytes at {self.address:#x}>"


class Peer:
    """A peer's memory, by the peer's addresses. Local buffers lie in registered memory.

    ``stream`` is a stream of CUDA that works on the local memory: a transfer begins when the stream has done
    what it has at the call. The wait is part of ``timeout``, and ends after 60 seconds without one. Without
    a stream the program has waited itself, for instance by ``torch.cuda.synchronize()``; a buffer whose
    ``__cuda_array_interface__`` names a stream is waited for. The end of a transfer needs no stream: its bytes
    are there for work that is started later.
    """

    def __init__(self, engine: Engine, address: str) -> None:
        # Keeps registered buffers alive.
        self._engine = engine
        self._core = engine._core
        self.address = address

    def segments(self) -> list[Segment]:
        """Ask the peer for the memory that it serves, in the order of registration."""
        return [Segment(*segment) for segment in self._core.segments(self.address)]

    def grants(self, segment: str | None = None) -> dict[str, dict[str, str]]:
        """Ask the peer, as one of its ``administrators``, for the grants of a segment, or of all: by the
        segment's name and the pattern of names, ``read``, ``write`` or ``read-write``."""
        listed = self._core.peer_grants(self.address, segment)
        return {name: dict(grants) for name, grants in listed}

    def grant(self, segment: str, peers: str, access: str) -> None:
        """Let the peers whose names a pattern covers ``read``, ``write`` or ``read-write`` a segment of
        this peer, as one of its ``administrators``. In force on return; after an interruption it may be."""
        self._core.peer_grant(self.address, segment, peers, access)

    def revoke(self, segment: str, peers: str, access: str = "read-write") -> None:
        """Take a permission from a pattern of names in a segment of this peer, as one of its
        ``administrators``. In force on return, also for transfers under way. Fails where the pattern has
        none of it and an overlapping one keeps it."""
        self._core.peer_revoke(self.address, segment, peers, access)

    def write(
        self,
        buffer: _Buffer,
        address: int,
        *,
        timeout: float | None = None,
        notify: _Notify = None,
        stream: _Stream = None,
    ) -> None:
        """Write a buffer to an address of the peer, and wait for the end. ``notify`` is a pair of
        name and message that the peer receives after the last byte. Seconds as ``timeout``, for both."""
        place, after = _buffers.in_order(buffer, stream)
        local, nbytes = place.address, place.nbytes
        self._core.transfer_one(
            self.address, True, local, address, nbytes, notify, timeout, after
        )

    def read(
        self,
        buffer: _Buffer,
        address: int,
        *,
        timeout: float | None = None,
        notify: _Notify = None,
        stream: _Stream = None,
    ) -> None:
        """Read from an address of the peer into a buffer, and wait for the end."""
        place, after = _buffers.in_order(buffer, stream)
        local, nbytes = place.address, place.nbytes
        self._core.transfer_one(
            self.address, False, local, address, nbytes, notify, timeout, after
        )

    def write_many(
        self,
        locals: _Places,
        remotes: _Places,
        lengths: _Lengths,
        *,
        timeout: float | None = None,
        notify: _Notify = None,
        stream: _Stream = None,
    ) -> None:
        """Write many pieces, by their local addresses, addresses of the peer, and lengths, and wait
        for the end of all. Each is a list, an array of 64-bit integers, or a ``Strided``; one
        integer is the length of every piece."""
        after = _buffers.stream_of(stream)
        self._core.transfer(
            self.address, True, locals, remotes, lengths, notify, timeout, after
        )

    def read_many(
        self,
        locals: _Places,
        remotes: _Places,
        lengths: _Lengths,
        *,
        timeout: float | None = None,
        notify: _Notify = None,
        stream: _Stream = None,
    ) -> None:
        """Read many pieces, and wait for the end of all."""
        after = _buffers.stream_of(stream)
        self._core.transfer(
            self.address, False, locals, remotes, lengths, notify, timeout, after
        )

    def start_write(
        self,
        locals: _Places,
        remotes: _Places,
        lengths: _Lengths,
        *,
        timeout: float | None = None,
        stream: _Stream = None,
    ) -> Transfer:
        """Start to write many pieces. Waits only for the first answer of the peer."""
        return self._start(True, locals, remotes, lengths, timeout, stream)

    def start_read(
        self,
        locals: _Places,
        remotes: _Places,
        lengths: _Lengths,
        *,
        timeout: float | None = None,
        stream: _Stream = None,
    ) -> Transfer:
        """Start to read many pieces."""
        return self._start(False, locals, remotes, lengths, timeout, stream)

    def _start(
        self,
        is_write: bool,
        locals: _Places,
        remotes: _Places,
        lengths: _Lengths,
        timeout: float | None,
        stream: _Stream,
    ) -> Transfer:
        after = _buffers.stream_of(stream)
        transfer = Transfer(self._engine)
        started: list[int] = []
        try:
            transfer._batch = self._core.submit(
                self.address, is_write, locals, remotes, lengths, started, timeout, after
            )
        except BaseException:
            # An exception of a signal's handler comes right after the start.
            if started:
                self._core.abandon(started[0])
            raise
        return transfer

    def notify(self, name: str, message: str) -> None:
        """Send the peer a notification."""
        self._core.notify(self.address, name, message)

    def probe(self) -> None:
        """Raise unless the peer answers."""
        self._core.probe(self.address)

    def fence(self) -> None:
        """Wait until no earlier failed write to the peer can land any more."""
        self._core.fence(self.address)

    def close(self) -> None:
        """Forget what is known of the peer, such as one that is gone. The next call opens it again."""
        self._core.close_peer(self.address)

    def __repr__(self) -> str:
        return f"<handfast.Peer {self.address}>"


class Transfer:
    """Pieces under way. Wait for it with ``wait()``, or await it. A task that is cancelled while it
    waits cancels the transfer, and ends with it. A transfer that is not waited for goes on."""

    def __init__(self, engine: Engine) -> None:
        # Keeps registered buffers alive.
        self._engine = engine
        self._core = engine._core
        # Of no batch before the start.
        self._batch = 0
        self._lock = _threading.Lock()
        self._ended: tuple[int, HandfastError | None] | None = None
        self._landed = b""

    def settled(self) -> bool:
        """Whether it has ended: nothing of the engine touches the local memory any more."""
        self._look()
        return self._ended is not None

    def wait(self) -> int:
        """Wait for the end. Return the bytes moved, or raise the failure."""
        if not self.settled():
            try:
                self._core.wait(self._batch)
            except InvalidArgument:
                self._look()
                if self._ended is None:
                    raise
                # Another thread has taken the end.
            self._look()
        return self._result()

    def cancel(self) -> None:
        """Ask for an early end. Wait for the transfer to learn how far it came."""
        with self._lock:
            if self._ended is None:
                self._core.cancel(self._batch)

    def landed(self) -> list[int]:
        """Return the bytes of each piece that are at their destination for certain, from its start.
        Raises InUse before the end."""
        if not self.settled():
            text = "the transfer has not ended: wait for it first"
            raise InUse(text, "local", "the transfer", None, "indeterminate", -4)
        return memoryview(self._landed).cast("Q").tolist()

    def __await__(self) -> _Generator[_Any, None, int]:
        return self._wait_async().__await__()

    async def _wait_async(self) -> int:
        cancelled = None
        end = None
        try:
            end = None if self.settled() else _waiting.end_of(self._core, self._batch)
            while not self.settled():
                try:
                    # Not a task, which a loop that ends would cancel.
                    await (_asyncio.sleep(_LOOK_S) if end is None else _asyncio.shield(end.future))
                except _asyncio.CancelledError as error:
                    # The buffers are in use until the end.
                    cancelled = error
                    self.cancel()
        except BaseException:
            # Such as GeneratorExit of a coroutine that is closed, which may not await any more. One
            # call, and no step of the interpreter before it, where a signal's handler could raise.
            self._core.end(self._batch)
            raise
        finally:
            if end is not None:
                _waiting.forget(end)
        if cancelled is not None:
            raise cancelled
        return self._result()

    def _look(self) -> None:
        with self._lock:
            if self._ended is not None:
                return
            state = self._core.state(self._batch)
            if state is None:
                return
            self._landed = self._core.landed(self._batch)
            self._ended = state
            self._core.free(self._batch)

    def _result(self) -> int:
        assert self._ended is not None
        moved, failure = self._ended
        if failure is not None:
            raise failure
        return moved

    def __del__(self) -> None:
        try:
            if self._ended is None:
                self._core.free_at_end(self._batch)
        except Exception:
            pass  # The engine is gone, or there was none.
