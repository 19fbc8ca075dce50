"""The interface of ``mooncake.engine`` over handfast.

Calls return what Mooncake's return: 0 or a negative number, ids above 0. A call that returns a failure
leaves the local buffers alone: nothing reads or writes them any more, unless a device keeps them after the
engine was closed (``InUse``). ``TransferEngine.last_error`` has
the reason, and what may be in the peer's memory.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Iterable, Sequence
from operator import index
from typing import Any, NoReturn

from .. import _handfast
from .._errors import HandfastError, InvalidArgument

__all__ = [
    "InnerTransferEngine",
    "Read",
    "SUPPORT_CUDA",
    "SUPPORT_EFA",
    "SUPPORT_HIP",
    "SUPPORT_INTRA_NVLINK",
    "SUPPORT_MNNVL",
    "SUPPORT_MUSA",
    "TransferEngine",
    "TransferNotify",
    "TransferOpcode",
    "Write",
]

SUPPORT_CUDA = False
SUPPORT_EFA = False
SUPPORT_HIP = False
SUPPORT_INTRA_NVLINK = False
SUPPORT_MNNVL = False
SUPPORT_MUSA = False

_log = logging.getLogger("handfast.mooncake")

#: A list of integers, or an array of numpy.
Numbers = Sequence[int] | Any


class TransferOpcode(enum.IntEnum):
    """Direction of a transfer."""

    Read = 0
    Write = 1


Read = TransferOpcode.Read
Write = TransferOpcode.Write


class TransferNotify:
    """A notification."""

    def __init__(self, name: str = "", msg: str = "") -> None:
        self.name = name
        self.msg = msg

    def __repr__(self) -> str:
        return f"TransferNotify(name={self.name!r}, msg={self.msg!r})"


class InnerTransferEngine:
    """The C++ object of Mooncake's engine, which handfast does not have."""

    def __init__(self) -> None:
        raise TypeError("handfast has no C++ engine: mooncake.store makes its own")


class TransferEngine:
    """Mooncake's engine. All calls may come from any number of threads."""

    TransferOpcode = TransferOpcode

    def __init__(self) -> None:
        self._core: _handfast.Core | None = None
        self._errors = threading.local()
        self._starting = threading.Lock()

    # Not of Mooncake's.

    def last_error(self) -> Exception | None:
        """Return the exception of this thread's last failed call, or None. Its ``remote`` is
        ``untouched``, ``fenced`` or ``indeterminate``."""
        return getattr(self._errors, "last", None)

    def _fail(self, error: Exception, code: int = -1) -> int:
        self._errors.last = error
        _log.info("%s", error)
        return code

    def _initialized(self) -> _handfast.Core:
        if self._core is None:
            raise _invalid("the engine is not initialized: call initialize first")
        return self._core

    # Start.

    def initialize(
        self, local_hostname: str, metadata_server: str, protocol: str, device_name: str | None
    ) -> int:
        """Start the engine. ``rdma`` uses TCP where RDMA is not available, with a warning."""
        try:
            with self._starting:
                if self._core is not None:
                    raise _invalid("the engine is initialized already")
                devices = device_name or ""
                self._core = _handfast.Core(
                    local_hostname, metadata_server, protocol, devices, False
                )
        except HandfastError as error:
            _log.warning("initialize failed: %s", error)
            return self._fail(error)
        for warning in self._core.warnings:
            _log.warning("%s", warning)
        return 0

    def initialize_ext(
        self,
        local_hostname: str,
        metadata_server: str,
        protocol: str,
        device_name: str | None,
        metadata_type: str,
    ) -> int:
        """Start the engine; ``metadata_type`` is the scheme of the metadata server."""
        server = metadata_server
        if "://" not in server and server != "P2PHANDSHAKE":
            server = f"{metadata_type}://{server}"
        return self.initialize(local_hostname, server, protocol, device_name)

    def get_rpc_port(self) -> int:
        """Return the port of this engine; 0 before ``initialize``."""
        return 0 if self._core is None else self._core.port

    def get_local_topology(self, device_name: str | None = None) -> str:
        """Return the RDMA devices near each memory, as JSON."""
        return _handfast.local_topology()

    def get_engine(self) -> None:
        """Return None: ``mooncake.store`` makes its own engine then."""
        return None

    def get_engine_ptr(self) -> int:
        """Return 0: there is no C++ object."""
        return 0

    def warmup_efa_segment(self, segment_name: str) -> int:
        """Do nothing: EFA is not supported."""
        return 0

    # Memory.

    def register_memory(self, buffer_addr: int, capacity: int, location: str = "*") -> int:
        """Register memory. It stays the caller's, until ``unregister_memory`` has returned 0."""
        core, registered = self._core, dict[int, object]()
        try:
            core = core or self._initialized()
            core.register(buffer_addr, capacity, location, None, (registered, 0, None))
        except BaseException as error:
            if core is not None and registered:
                # An exception of a signal's handler comes right after the registration.
                core.unregister(buffer_addr)
            elif isinstance(error, HandfastError):
                return self._fail(error, error.code)
            raise
        return 0

    def unregister_memory(self, buffer_addr: int) -> int:
        """End the registration, after the transfers that use the memory."""
        try:
            self._initialized().unregister(buffer_addr)
        except HandfastError as error:
            return self._fail(error, error.code)
        return 0

    def batch_register_memory(
        self, buffer_addresses: Numbers, capacities: Numbers, location: str = "*"
    ) -> int:
        """Register memory at several places, or nowhere."""
        core, registered = self._core, dict[int, list[int]]()
        try:
            core = core or self._initialized()
            core.register_all(buffer_addresses, capacities, location, registered)
        except BaseException as error:
            if core is not None and registered:
                # As above. The addresses as they were read: an iterator gives them once.
                core.unregister_all(registered[0])
            elif isinstance(error, HandfastError):
                return self._fail(error, error.code)
            elif isinstance(error, ValueError):
                return self._fail(error)
            raise
        return 0

    def batch_unregister_memory(self, buffer_addresses: Numbers) -> int:
        """End registrations. The first failure is returned after all others were tried."""
        code = 0
        # A wrong one raises before any has ended.
        addresses = [index(address) for address in buffer_addresses]
        if not all(0 <= address < 1 << 64 for address in addresses):
            raise OverflowError("an address is negative or longer than 64 bits")
        for address in addresses:
            failed = self.unregister_memory(address)
            code = code or failed
        return code

    def allocate_managed_buffer(self, length: int) -> int:
        """Allocate registered memory. Return its address, or 0."""
        core, allocated = self._core, list[int]()
        try:
            core = core or self._initialized()
            return core.allocate_managed(length, allocated)
        except BaseException as error:
            if core is not None and allocated:
                # An exception of a signal's handler comes right after the allocation.
                core.free_managed(allocated[0], length)
            elif isinstance(error, (HandfastError, OverflowError)):
                return self._fail(error, 0)
            raise

    def free_managed_buffer(self, buffer_addr: int, length: int) -> int:
        """Free memory of ``allocate_managed_buffer``, of the same length."""
        try:
            self._initialized().free_managed(buffer_addr, length)
        except (HandfastError, OverflowError) as error:
            return self._fail(error)
        return 0

    def write_bytes_to_buffer(self, dest_address: int, src_ptr: bytes | str, length: int) -> int:
        """Copy the first bytes of some to registered memory."""
        text = src_ptr.encode() if isinstance(src_ptr, str) else bytes(memoryview(src_ptr))
        try:
            core = self._initialized()
            if not 0 <= length <= len(text):
                raise _invalid(f"{length} bytes were to be copied of {len(text)}")
            core.copy_in(dest_address, text[:length])
        except (HandfastError, OverflowError) as error:
            return self._fail(error)
        return 0

    def read_bytes_from_buffer(self, source_address: int, length: int) -> bytes:
        """Copy bytes from registered memory. Raises for other memory."""
        return self._initialized().copy_out(source_address, length)

    def get_first_buffer_address(self, segment_name: str) -> int:
        """Return the address of a peer's first registered memory, or 0."""
        try:
            segments = self._initialized().segments(segment_name)
        except HandfastError as error:
            return self._fail(error, 0)
        return segments[0][1] if segments else 0

    # Transfers that block.

    def transfer_sync_write(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        transport_hint: str = "",
    ) -> int:
        return self._one(target_hostname, buffer, peer_buffer_address, length, True)

    def transfer_sync_read(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        transport_hint: str = "",
    ) -> int:
        return self._one(target_hostname, buffer, peer_buffer_address, length, False)

    def transfer_sync(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        opcode: int,
        notify: TransferNotify | None = None,
        transport_hint: str = "",
    ) -> int:
        is_write = _is_write(opcode)
        return self._one(target_hostname, buffer, peer_buffer_address, length, is_write, notify)

    def batch_transfer_sync_write(
        self,
        target_hostname: str,
        buffers: Numbers,
        peer_buffer_addresses: Numbers,
        lengths: Numbers,
        transport_hint: str = "",
    ) -> int:
        return self._many(target_hostname, buffers, peer_buffer_addresses, lengths, True)

    def batch_transfer_sync_read(
        self,
        target_hostname: str,
        buffers: Numbers,
        peer_buffer_addresses: Numbers,
        lengths: Numbers,
        transport_hint: str = "",
    ) -> int:
        return self._many(target_hostname, buffers, peer_buffer_addresses, lengths, False)

    def batch_transfer_sync(
        self,
        target_hostname: str,
        buffers: Numbers,
        peer_buffer_addresses: Numbers,
        lengths: Numbers,
        opcode: int,
        notify: TransferNotify | None = None,
        transport_hint: str = "",
    ) -> int:
        is_write = _is_write(opcode)
        return self._many(
            target_hostname, buffers, peer_buffer_addresses, lengths, is_write, notify
        )

    def _one(
        self,
        peer: str,
        buffer: int,
        address: int,
        length: int,
        is_write: bool,
        notify: TransferNotify | None = None,
    ) -> int:
        try:
            core = self._core or self._initialized()
            pair = None if notify is None else _pair(notify)
            core.transfer_one(peer, is_write, buffer, address, length, pair)
        except HandfastError as error:
            return self._fail(error)
        return 0

    def _many(
        self,
        peer: str,
        buffers: Numbers,
        addresses: Numbers,
        lengths: Numbers,
        is_write: bool,
        notify: TransferNotify | None = None,
    ) -> int:
        try:
            core = self._core or self._initialized()
            pair = None if notify is None else _pair(notify)
            core.transfer(peer, is_write, buffers, addresses, lengths, pair)
        except (HandfastError, ValueError) as error:
            return self._fail(error)
        return 0

    # Transfers by id.

    def batch_transfer_async_write(
        self,
        target_hostname: str,
        buffers: Numbers,
        peer_buffer_addresses: Numbers,
        lengths: Numbers,
        transport_hint: str = "",
    ) -> int:
        return self._start(target_hostname, buffers, peer_buffer_addresses, lengths, True)

    def batch_transfer_async_read(
        self,
        target_hostname: str,
        buffers: Numbers,
        peer_buffer_addresses: Numbers,
        lengths: Numbers,
        transport_hint: str = "",
    ) -> int:
        return self._start(target_hostname, buffers, peer_buffer_addresses, lengths, False)

    def batch_transfer_async(
        self,
        target_hostname: str,
        buffers: Numbers,
        peer_buffer_addresses: Numbers,
        lengths: Numbers,
        opcode: int,
        transport_hint: str = "",
    ) -> int:
        is_write = _is_write(opcode)
        return self._start(target_hostname, buffers, peer_buffer_addresses, lengths, is_write)

    def transfer_submit_write(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        transport_hint: str = "",
    ) -> int:
        return self._start(target_hostname, [buffer], [peer_buffer_address], [length], True)

    def _start(
        self, peer: str, buffers: Numbers, addresses: Numbers, lengths: Numbers, is_write: bool
    ) -> int:
        core = self._core
        started: list[int] = []
        try:
            core = core or self._initialized()
            return core.submit(peer, is_write, buffers, addresses, lengths, started)
        except BaseException as error:
            if core is not None and started:
                # An exception of a signal's handler comes right after the start.
                core.abandon(started[0])
            elif isinstance(error, (HandfastError, ValueError)):
                return self._fail(error, 0)
            raise

    def transfer_check_status(self, batch_id: int) -> int:
        """Return 1 for a batch that is done, 0 for one under way, -1 for a failed one and -2 after
        its deadline. An id is known until its end has been returned."""
        try:
            core = self._initialized()
            state = core.state(batch_id)
            if state is None:
                return 0
            core.free(batch_id)
        except (HandfastError, OverflowError) as error:
            return self._fail(error)
        failure = state[1]
        if failure is None:
            return 1
        return self._fail(failure, -2 if isinstance(failure, TimeoutError) else -1)

    def get_batch_transfer_status(self, batch_ids: Iterable[int]) -> int:
        """Wait for batches. Return 0 if all are done, else -1: the first failure cancels the others,
        and all have ended when this returns."""
        code = 0
        batches = [index(batch) for batch in batch_ids]
        try:
            for batch in batches:
                failure = self._end(batch, is_cancelled=code != 0)
                if failure is not None and code == 0:
                    code = self._fail(failure)
        except BaseException:
            # Such as KeyboardInterrupt: nothing stays under way.
            for batch in batches:
                self._end(batch, is_cancelled=True)
            raise
        return code

    def _end(self, batch: int, is_cancelled: bool) -> Exception | None:
        try:
            core = self._initialized()
            if is_cancelled:
                core.cancel(batch)
            _, failure = core.wait(batch)
            core.free(batch)
        except (HandfastError, OverflowError) as error:
            return error
        return failure

    # Peers.

    def get_notifies(self) -> list[TransferNotify]:
        """Return the notifications received since the last call."""
        try:
            taken = self._initialized().take_notifications()
        except HandfastError as error:
            self._fail(error)
            return []
        return [TransferNotify(name, message) for name, message in taken]

    def send_probe(self, peer_server_name: str) -> int:
        """Return 0 if the peer answers."""
        try:
            self._initialized().probe(peer_server_name)
        except HandfastError as error:
            return self._fail(error)
        return 0


def _is_write(opcode: int) -> bool:
    return TransferOpcode(opcode) is TransferOpcode.Write


def _invalid(text: str) -> InvalidArgument:
    return InvalidArgument(text, "local", "configuration", None, "untouched", -1)


def _pair(notify: TransferNotify | None) -> tuple[str, str] | None:
    return None if notify is None else (notify.name, notify.msg)


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(
        f"handfast's mooncake.engine has no '{name}': RPC classes, shared segments and transfers on "
        "CUDA streams are in Mooncake's own package alone"
    )
