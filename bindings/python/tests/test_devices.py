"""Memory of CUDA devices, over a scripted driver whose addresses fault when a processor touches them."""

import contextlib
import ctypes
import faulthandler
import gc
import itertools
import json
import os
import signal
import subprocess
import threading
import time
import types
import unittest
import weakref

import handfast
import numpy
from handfast import mooncake
from helpers import Store, free_port, python

LIVE = (
    "streams",
    "contexts",
    "allocations",
    "pinned",
    "copying",
    "waiting",
    "events",
    "unready",
    "copied",
    "flushes",
    "pending",
    "opened",
)
PATIENCE_S = 20
#: Less than the close of an engine waits for its memory.
IN_USE_S = 8
#: Serves a tensor, and prints whether it has what the user wrote.
TORCH_OWNER = """
import sys, torch, handfast
engine = handfast.Engine(transport="tcp")
cache = torch.zeros(50 << 20, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
served = engine.register(cache)
print(engine.address, served.address, flush=True)
sys.stdin.readline()
print("equal" if bool((cache[3:] == 9).all()) else "different", flush=True)
"""
#: Writes to it, and prints whether it reads the same.
TORCH_USER = """
import sys, torch, handfast
address, start = sys.stdin.readline().split()
small = [torch.zeros(1000, device="cuda") for _ in range(8)]
here = torch.full((50 << 20,), 9, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
with handfast.Engine(transport="tcp") as engine:
    engine.register(here)
    peer = engine.peer(address)
    peer.write_many([here.data_ptr()], [int(start) + 3], [here.numel() - 3])
    here.zero_()
    torch.cuda.synchronize()
    peer.read_many([here.data_ptr()], [int(start) + 3], [here.numel() - 3])
    print("equal" if bool((here[:-3] == 9).all()) and not here[-3:].any() else "different")
"""
CPU, CUDA, MANAGED, METAL = 1, 2, 13, 8


class Scripted:
    """The driver of this process, which ends with it."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.run = self.library.handfast_fabric_cuda_command
        self.run.argtypes = [ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64]
        self.run.restype = ctypes.c_int64
        for name in ("cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2"):
            getattr(self.library, name).restype = ctypes.c_int
        self.run(b"start", 0, 0)
        self.contexts = [self._context(device) for device in (0, 1)]

    def _context(self, device):
        context = ctypes.c_void_p()
        self.check(self.library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        return context

    @staticmethod
    def check(code):
        assert code == 0, code

    @contextlib.contextmanager
    def current(self, device):
        self.check(self.library.cuCtxPushCurrent_v2(self.contexts[device]))
        try:
            yield
        finally:
            self.check(self.library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())))

    def allocate(self, device, nbytes, kind=b""):
        return self.run(b"allocate" + kind, device, nbytes)

    def free(self, address):
        self.check(self.run(b"free", address, 0))

    def hold(self, is_held):
        self.run(b"hold", int(is_held), 0)

    def live(self):
        counts = (ctypes.c_int64 * len(LIVE))()
        self.library.handfast_fabric_cuda_live(counts)
        return types.SimpleNamespace(**dict(zip(LIVE, counts)))

    def stream(self, device):
        stream = ctypes.c_void_p()
        with self.current(device):
            self.check(self.library.cuStreamCreate(ctypes.byref(stream), 1))
        return stream.value

    def copy_in(self, device, address, content, stream):
        """Starts a copy, which takes place when the stream is waited for. The result keeps it alive."""
        source = ctypes.create_string_buffer(content, len(content))
        with self.current(device):
            call = self.library.cuMemcpyHtoDAsync_v2
            call.argtypes = [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
            self.check(call(address, ctypes.addressof(source), len(content), stream))
        return source

    def fill(self, device, address, content):
        stream = self.stream(device)
        source = self.copy_in(device, address, content, stream)
        self.check(self.library.cuStreamSynchronize(ctypes.c_void_p(stream)))
        self.check(self.library.cuStreamDestroy_v2(ctypes.c_void_p(stream)))
        del source

    def content(self, device, address, nbytes):
        target, stream = ctypes.create_string_buffer(nbytes), self.stream(device)
        with self.current(device):
            call = self.library.cuMemcpyDtoHAsync_v2
            call.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]
            self.check(call(ctypes.addressof(target), address, nbytes, stream))
        self.check(self.library.cuStreamSynchronize(ctypes.c_void_p(stream)))
        self.check(self.library.cuStreamDestroy_v2(ctypes.c_void_p(stream)))
        return target.raw


class Tensor:
    """A stand-in for one of torch."""

    def __init__(self, address, nbytes, device):
        self.address, self.nbytes = address, nbytes
        self.device = types.SimpleNamespace(type="cuda", index=device)

    def data_ptr(self):
        return self.address

    def numel(self):
        return self.nbytes // 2

    def element_size(self):
        return 2

    def is_contiguous(self):
        return True


class CudaArray:
    """A stand-in for one of cupy or numba."""

    def __init__(self, address, shape, strides=None, read_only=False, **more):
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": "<f4",
            "data": (address, read_only),
            "strides": strides,
            "version": 3,
            **more,
        }


class DlTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint8 * 4),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    _fields_ = [("tensor", DlTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32 * 2),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", DlTensor),
    ]


DESTRUCTOR = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
capsule_of = ctypes.pythonapi.PyCapsule_New
capsule_of.restype, capsule_of.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, DESTRUCTOR]


class DlpackArray:
    """A producer of 16-bit elements in two rows."""

    def __init__(self, address, nbytes, device, strides=None, flags=None, offset=0):
        self.kind, self.ended, self.streams = device, 0, []
        self.shape = (ctypes.c_int64 * 2)(2, nbytes // 4)
        self.strides = None if strides is None else (ctypes.c_int64 * 2)(*strides)
        self.tensor = DlTensor(address - offset, device, 2, (0, 16, 1, 0), byte_offset=offset)
        self.tensor.shape = ctypes.addressof(self.shape)
        self.tensor.strides = None if strides is None else ctypes.addressof(self.strides)
        self.flags = flags
        self.destructor = DESTRUCTOR(self._end)

    def _end(self, _):
        self.ended += 1

    def __dlpack_device__(self):
        return self.kind

    def __dlpack__(self, *, stream=None, **versions):
        if self.flags is None and versions:
            raise TypeError("no versions here")
        self.streams.append(stream)
        if self.flags is None:
            self.managed, name = Managed(self.tensor), b"dltensor"
        else:
            self.managed, name = Versioned((1, 0), None, None, self.flags, self.tensor), b"dltensor_versioned"
        return capsule_of(ctypes.addressof(self.managed), name, self.destructor)


def pattern(nbytes, seed):
    return bytes((at * 7 + seed + at // 251) % 256 for at in range(nbytes))


class Devices(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        path = os.environ.get("HANDFAST_SCRIPTED_CUDA")
        if not path:
            raise unittest.SkipTest("HANDFAST_SCRIPTED_CUDA names no scripted driver")
        cls.cuda = Scripted(path)

    def setUp(self):
        self.owner, self.user = handfast.Engine(transport="tcp"), handfast.Engine(transport="tcp")
        self.addCleanup(self.owner.close)
        self.addCleanup(self.user.close)
        self.addCleanup(self.cuda.hold, False)
        self.peer = self.user.peer(self.owner.address)

    def tensor(self, device, content):
        address = self.cuda.allocate(device, len(content))
        self.cuda.fill(device, address, content)
        return Tensor(address, len(content), device)

    def until(self, is_so):
        limit = time.monotonic() + PATIENCE_S
        while not is_so():
            self.assertLess(time.monotonic(), limit)
            time.sleep(0.001)

    def test_tensors_of_devices_are_moved(self):
        """Between devices and to the host, whole and in pieces; more than a buffer of staging at a time."""
        nbytes = 3 * (256 << 10) + 10
        content = pattern(nbytes, 1)
        there, here = self.tensor(1, bytes(nbytes)), self.tensor(0, content)
        served, local = self.owner.register(there), self.user.register(here)
        self.assertEqual((local.address, local.nbytes), (here.address, nbytes))
        self.peer.write(here, served.address)
        self.assertEqual(self.cuda.content(1, there.address, nbytes), content)
        block = numpy.zeros(1000, dtype=numpy.uint8)
        with self.user.register(block):
            self.peer.read_many([block.ctypes.data], [served.address + 13], [1000])
        self.assertEqual(block.tobytes(), content[13:1013])
        self.cuda.fill(0, here.address, bytes(nbytes))
        self.peer.start_read([local.address], [served.address], [nbytes]).wait()
        self.assertEqual(self.cuda.content(0, here.address, nbytes), content)

    def test_cuda_array_interface_is_moved(self):
        content = pattern(64, 2)
        here = self.tensor(0, content).address
        cache = numpy.zeros(64, dtype=numpy.uint8)
        served = self.owner.register(cache)
        for strides in (None, (32, 4)):
            cache[:] = 0
            array = CudaArray(here, (2, 8), strides)
            with self.user.register(array) as local:
                self.assertEqual((local.address, local.nbytes), (here, 64))
                self.peer.write(array, served.address)
            self.assertEqual(cache.tobytes(), content)
        for wrong, text in (
            (CudaArray(here, (8, 2), (4, 32)), "not contiguous"),
            (CudaArray(here, (2,), (5,)), "not contiguous"),
            (CudaArray(here, (2, 8), read_only=True), "read-only"),
        ):
            with self.assertRaisesRegex(ValueError, text):
                self.user.register(wrong)

    def test_dlpack_is_moved(self):
        """Of the host and of a device, by both kinds of capsules, which live as long as the registration."""
        content = pattern(64, 3)
        host = numpy.frombuffer(bytearray(content), dtype=numpy.uint8)
        cache = numpy.zeros(64, dtype=numpy.uint8)
        served = self.owner.register(cache)
        for address, device in ((self.tensor(1, content).address, (CUDA, 1)), (host.ctypes.data, (CPU, 0))):
            for flags, strides, offset in ((None, None, 0), (0, (16, 1), 8)):
                cache[:] = 0
                array = DlpackArray(address, 64, device, strides, flags, offset)
                local = self.user.register(array)
                self.assertEqual((local.address, local.nbytes), (address, 64))
                gc.collect()
                self.assertEqual(array.ended, 0, "the registration has the capsule")
                self.peer.write(array, served.address)
                self.assertEqual(cache.tobytes(), content)
                local.close()
                gc.collect()
                self.assertEqual(array.ended, 2)
                unordered = -1 if device[0] == CUDA else None
                self.assertEqual(array.streams, [unordered, unordered])
        self.assertEqual(content, host.tobytes())

    def test_dlpack_that_does_not_fit_is_refused(self):
        address = self.tensor(0, bytes(64)).address
        for wrong, text in (
            (DlpackArray(address, 64, (CUDA, 0), (1, 2)), "not contiguous"),
            (DlpackArray(address, 64, (CUDA, 0), None, 1), "read-only"),
            (DlpackArray(address, 64, (CUDA, 0), None, 2), "returned a copy"),
            (DlpackArray(address, 64, (METAL, 0)), "is not supported"),
        ):
            with self.assertRaisesRegex(ValueError, text):
                self.user.register(wrong)
        used = types.SimpleNamespace(__dlpack__=lambda **_: None, __dlpack_device__=lambda: (CPU, 0))
        with self.assertRaisesRegex(ValueError, "returned no tensor"):
            self.user.register(used)
        managed = DlpackArray(self.cuda.allocate(0, 64, b" managed"), 64, (MANAGED, 0))
        with self.assertRaisesRegex(handfast.HandfastError, "moves between host and device"):
            self.user.register(managed)

    def held_write(self, start):
        """Starts a write that waits for a stream with a copy that is held, and returns the memory of the
        peer, the new content, and the thread."""
        old, new = pattern(4096, 4), pattern(4096, 5)
        tensor, stream = self.tensor(0, old), self.cuda.stream(0)
        cache = numpy.zeros(4096, dtype=numpy.uint8)
        served = self.owner.register(cache)
        self.user.register(tensor)
        # The first transfer shows that nothing else waits for the program's stream.
        source = self.cuda.copy_in(0, tensor.address, new, stream)
        self.peer.write(tensor, served.address)
        self.assertEqual(cache.tobytes(), old)
        cache[:] = 0
        self.cuda.hold(True)
        before = self.cuda.live().unready
        failures = []

        def call():
            try:
                start(tensor, served.address, stream)
            except Exception as error:
                failures.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        self.until(lambda: self.cuda.live().unready > before or not thread.is_alive())
        return cache, new, thread, failures, source

    def test_transfer_waits_for_its_stream(self):
        """However the stream is given, and whether the call waits for the transfer or starts it."""
        device = types.SimpleNamespace(index=0)

        def array(tensor, **more):
            return CudaArray(tensor.address, (tensor.nbytes // 4,), **more)

        def pieces(tensor, address):
            return [tensor.address], [address], [tensor.nbytes]

        peer = self.peer
        starts = {
            "a number": lambda it, to, stream: peer.write(it, to, stream=stream),
            "a stream of torch": lambda it, to, stream: peer.write(
                it, to, stream=types.SimpleNamespace(cuda_stream=stream, device=device)
            ),
            "an object with the protocol": lambda it, to, stream: peer.write(
                it, to, stream=types.SimpleNamespace(__cuda_stream__=lambda: (0, stream))
            ),
            "many pieces": lambda it, to, stream: peer.write_many(*pieces(it, to), stream=stream),
            "started": lambda it, to, stream: peer.start_write(*pieces(it, to), stream=stream).wait(),
            "the interface of an array": lambda it, to, stream: peer.write(array(it, stream=stream), to),
        }
        for name, start in starts.items():
            with self.subTest(name):
                cache, new, thread, failures, _source = self.held_write(start)
                self.assertTrue(thread.is_alive(), failures)
                self.assertFalse(cache.any(), "no byte is read before the stream is done")
                self.cuda.hold(False)
                thread.join(PATIENCE_S)
                self.assertEqual(failures, [])
                self.assertEqual(cache.tobytes(), new)
        self.assertEqual(self.cuda.live().events, 0)

    def test_stream_that_hangs_ends_the_call_at_its_timeout(self):
        def start(tensor, address, stream):
            self.peer.write(tensor, address, stream=stream, timeout=0.1)

        cache, _, thread, failures, _source = self.held_write(start)
        thread.join(PATIENCE_S)
        self.assertFalse(thread.is_alive())
        (failure,) = failures
        self.assertIsInstance(failure, handfast.TransferTimeout)
        self.assertEqual((failure.side, failure.remote), ("local", "untouched"))
        self.assertRegex(str(failure), "has not done its work")
        self.assertFalse(cache.any())

    def test_wait_for_a_stream_ends_with_its_engine(self):
        """And its close returns after the call has left the driver."""

        def start(tensor, address, stream):
            self.peer.write(tensor, address, stream=stream)

        cache, _, thread, failures, _source = self.held_write(start)
        self.assertTrue(thread.is_alive(), failures)
        self.user.close()
        thread.join(PATIENCE_S)
        self.assertFalse(thread.is_alive())
        self.assertEqual([type(failure) for failure in failures], [handfast.Closed])
        self.assertFalse(cache.any())

    def test_handler_of_a_signal_closes_a_waiting_engine(self):
        """It runs inside of a call that waits for a stream."""
        tensor, stream = self.tensor(0, bytes(64)), self.cuda.stream(0)
        self.user.register(tensor)
        _source = self.cuda.copy_in(0, tensor.address, bytes(64), stream)
        self.cuda.hold(True)
        before, closed = self.cuda.live().unready, []

        def close(*_):
            self.user.close()
            closed.append(self.cuda.live().events)

        def interrupt():
            self.until(lambda: self.cuda.live().unready > before)
            os.kill(os.getpid(), signal.SIGUSR1)

        earlier = signal.signal(signal.SIGUSR1, close)
        # A handler that never returns cannot be interrupted.
        faulthandler.dump_traceback_later(2 * PATIENCE_S, exit=True)
        try:
            threading.Thread(target=interrupt).start()
            with self.assertRaises(handfast.Closed):
                self.peer.write(tensor, 0, stream=stream)
        finally:
            faulthandler.cancel_dump_traceback_later()
            signal.signal(signal.SIGUSR1, earlier)
        self.assertEqual(closed, [0], "the call has left the driver")

    def test_end_of_a_core_in_use_stops_no_thread(self):
        """Its memory is in use for longer than its close waits, as a copy of the device is held. The engine
        is kept, with its stream of a device that counts no streams elsewhere."""
        tensor, cache = self.tensor(1, bytes(4096)), numpy.zeros(4096, dtype=numpy.uint8)
        served = self.owner.register(cache)
        user = handfast.Engine(transport="tcp")
        user.register(tensor)
        copying = self.cuda.live().copying
        self.cuda.hold(True)
        pieces = [tensor.address], [served.address], [tensor.nbytes]
        transfer = user.peer(self.owner.address).start_write(*pieces)
        self.until(lambda: self.cuda.live().copying > copying)
        # The engine itself ends without it.
        core, user._core = user._core, types.SimpleNamespace(close=lambda: None)
        transfer.cancel()
        del transfer, user
        gc.collect()
        gaps, is_over = [], threading.Event()

        def tick():
            last = time.monotonic()
            while not is_over.wait(0.001):
                now = time.monotonic()
                gaps.append(now - last)
                last = now

        ticking = threading.Thread(target=tick)
        ticking.start()
        ending = weakref.ref(core)
        started = time.monotonic()
        del core
        took = time.monotonic() - started
        is_over.set()
        ticking.join()
        self.assertIsNone(ending())
        self.assertGreater(took, IN_USE_S, "it could not be closed")
        self.assertLess(max(gaps), IN_USE_S / 2)

    def test_child_of_a_fork_waits_for_no_stream(self):
        tensor, stream = self.tensor(0, bytes(64)), self.cuda.stream(0)
        self.user.register(tensor)
        _source = self.cuda.copy_in(0, tensor.address, bytes(64), stream)
        self.cuda.hold(True)
        child = os.fork()
        if child == 0:
            try:
                self.peer.write(tensor, 0, stream=stream, timeout=5)
            except handfast.Forked:
                os._exit(0)
            finally:
                os._exit(1)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)

    def test_segments_that_grow_are_moved(self):
        """As torch makes them: pieces that are mapped into reserved addresses."""
        piece = 2 << 20
        content = pattern(3 * piece - 100, 8)
        address = self.cuda.run(b"map", 0, 3) + 100
        here = Tensor(address, len(content), 0)
        host = numpy.frombuffer(bytearray(content), dtype=numpy.uint8)
        cache = numpy.zeros(len(content), dtype=numpy.uint8)
        served, _ = self.owner.register(cache), self.user.register(host)
        self.user.register(here)
        self.peer.write(host, served.address)
        self.peer.read(here, served.address)
        cache[:] = 0
        self.peer.write(here, served.address)
        self.assertEqual(cache.tobytes(), content)

    def test_default_stream_is_that_of_the_device(self):
        tensor = self.tensor(1, pattern(64, 6))
        cache = numpy.zeros(64, dtype=numpy.uint8)
        served, _ = self.owner.register(cache), self.user.register(tensor)
        self.peer.write(tensor, served.address, stream=0)
        self.assertEqual(cache.tobytes(), pattern(64, 6))
        self.peer.write_many([tensor.address], [served.address], [64], stream=0)
        block = numpy.zeros(64, dtype=numpy.uint8)
        self.user.register(block)
        pieces = [block.ctypes.data], [served.address], [64]
        with self.assertRaisesRegex(handfast.InvalidArgument, "no context is current"):
            self.peer.write_many(*pieces, stream=0)
        with self.cuda.current(1):
            self.peer.write_many(*pieces, stream=0)

    def test_default_stream_is_that_of_the_bytes(self):
        """An array that names a default stream, from a thread without a context."""
        content = pattern(64, 6)
        here = self.tensor(1, content).address
        cache = numpy.zeros(64, dtype=numpy.uint8)
        served = self.owner.register(cache)
        array = CudaArray(here, (16,), stream=1)
        self.user.register(array)
        self.peer.write(array, served.address)
        self.assertEqual(cache.tobytes(), content)

    def test_other_streams_are_refused(self):
        tensor = self.tensor(0, bytes(64))
        self.user.register(tensor)
        with self.assertRaisesRegex(handfast.HandfastError, "cuStreamGetCtx failed"):
            self.peer.write(tensor, 0, stream=1 << 40)
        for wrong, kind in ((-1, ValueError), (1 << 64, ValueError), ("0", TypeError), (0.5, TypeError)):
            with self.assertRaises(kind):
                self.peer.write(tensor, 0, stream=wrong)

    def test_location_is_published(self):
        """With the interface of Mooncake: the caller's, else the device that has the memory."""
        store = Store()
        self.addCleanup(store.end)
        engine = mooncake.TransferEngine()
        name = f"127.0.0.1:{free_port()}"
        self.assertEqual(engine.initialize(name, store.url, "tcp", ""), 0)
        places = {}
        for location in ("*", "cuda:0", "cpu:0", "no location"):
            address = self.cuda.allocate(1, 4096)
            self.assertEqual(engine.register_memory(address, 4096, location), 0)
            places[address] = location

        def found():
            values = [json.loads(value) for value in list(store.values.values())]
            pairs = [zip(it["buffers"], it["handfast"]["regions"]) for it in values if "buffers" in it]
            return {
                places[buffer["addr"]]: region["location"]
                for buffer, region in itertools.chain(*pairs)
                if buffer["addr"] in places
            }

        expected = {"*": "cuda:1", "cuda:0": "cuda:0", "cpu:0": "cpu:0", "no location": "cuda:1"}
        # The store learns of a registration after it.
        self.until(lambda: len(found()) == len(places))
        self.assertEqual(found(), expected)
        for address in places:
            self.assertEqual(engine.unregister_memory(address), 0)

    def test_freed_memory_is_refused(self):
        """Before it is registered, and by a copy after it."""
        tensor = self.tensor(0, bytes(64))
        cache = numpy.zeros(64, dtype=numpy.uint8)
        served = self.owner.register(cache)
        self.user.register(tensor)
        self.cuda.free(tensor.address)
        with self.assertRaises(handfast.HandfastError) as caught:
            self.peer.write(tensor, served.address)
        self.assertEqual(caught.exception.id, "GPU-POINTER")
        self.assertRegex(str(caught.exception), "was freed while it was registered")
        gone = self.tensor(0, bytes(64))
        self.cuda.free(gone.address)
        with self.assertRaisesRegex(handfast.HandfastError, "nor memory of a CUDA device"):
            self.owner.register(gone)

    def test_pointers_that_do_not_fit_are_refused(self):
        """Each with its reason, and nothing of them stays registered or allocated."""
        tensor = self.tensor(0, bytes(4096))
        managed, foreign = self.cuda.allocate(0, 64, b" managed"), self.cuda.allocate(1, 4096)
        self.cuda.free(foreign)
        before = self.cuda.live()
        for address, nbytes, text in (
            (managed, 64, "moves between host and device"),
            # The neighbour is another allocation, or none.
            (tensor.address, 1 << 45, "run past the end|on several devices|moves between"),
            (foreign, 4096, "nor memory of a CUDA device"),
        ):
            with self.assertRaisesRegex(handfast.HandfastError, text):
                self.owner.register_address(address, nbytes)
        for call, code, text in (
            ("cuPointerGetAttributes", 700, "cuPointerGetAttributes failed"),
            ("cuStreamCreate", 2, "CUDA_ERROR_OUT_OF_MEMORY"),
            ("cuCtxPushCurrent", 201, "CUDA_ERROR_INVALID_CONTEXT"),
        ):
            self.cuda.run(b"answer " + call.encode(), code, 0)
            with self.assertRaisesRegex(handfast.HandfastError, text):
                self.owner.register(tensor)
        self.assertEqual(self.owner._core.registered, 0)
        live = self.cuda.live()
        self.assertEqual((live.streams, live.contexts), (before.streams, before.contexts))
        with self.owner.register(tensor):
            pass

    def test_host_memory_of_the_driver_is_host_memory(self):
        """Registered from a thread without a context, and moved without the driver."""
        address = self.cuda.allocate(0, 4096, b" host")
        ctypes.memmove(address, pattern(4096, 7), 4096)
        cache = numpy.zeros(4096, dtype=numpy.uint8)
        served = self.owner.register(cache)
        copied = self.cuda.live().copied
        thread = threading.Thread(target=lambda: self.user.register_address(address, 4096))
        thread.start()
        thread.join()
        self.peer.write_many([address], [served.address], 4096)
        self.assertEqual(cache.tobytes(), pattern(4096, 7))
        self.assertEqual(self.cuda.live().copied, copied)


class Torch(unittest.TestCase):
    """Tensors of torch, where it is installed."""

    @classmethod
    def setUpClass(cls):
        try:
            import torch
        except ImportError:
            raise unittest.SkipTest("torch is not installed") from None
        cls.torch = torch

    def moved(self, here, there, stream=None):
        with handfast.Engine(transport="tcp") as owner, handfast.Engine(transport="tcp") as user:
            served = owner.register(there)
            user.register(here)
            user.peer(owner.address).write(here, served.address, stream=stream)

    def test_tensors_of_the_host_are_moved(self):
        here = self.torch.arange(4096, dtype=self.torch.int16).reshape(2, -1)
        there = self.torch.zeros_like(here)
        self.moved(here, there)
        self.assertTrue(self.torch.equal(here, there))

        class Producer:
            """Has no other interface than DLPack."""

            def __init__(self, tensor):
                self.__dlpack__, self.__dlpack_device__ = tensor.__dlpack__, tensor.__dlpack_device__

        there.zero_()
        self.moved(Producer(here), Producer(there))
        self.assertTrue(self.torch.equal(here, there))

    def needs_device(self):
        if not self.torch.cuda.is_available():
            self.skipTest("torch has no CUDA device here")

    def filled(self, nbytes, value):
        tensor = self.torch.full((nbytes,), value, dtype=self.torch.uint8, device="cuda")
        self.torch.cuda.synchronize()
        return tensor

    def test_tensors_of_a_device_are_moved(self):
        self.needs_device()
        stream = self.torch.cuda.Stream()
        there = self.torch.zeros(1 << 22, dtype=self.torch.int32, device="cuda")
        self.torch.cuda.synchronize()
        with self.torch.cuda.stream(stream):
            here = self.torch.arange(1 << 22, dtype=self.torch.int32, device="cuda")
        self.moved(here, there, stream)
        self.assertTrue(self.torch.equal(here.cpu(), there.cpu()))

    def test_tensors_of_another_process_are_moved(self):
        """With both kinds of the caching allocator's segments, across the pieces of one that grows."""
        self.needs_device()
        for segments in ("expandable_segments:False", "expandable_segments:True"):
            with self.subTest(segments):
                environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": segments}
                pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": environment}
                owner, user = python(TORCH_OWNER, **pipes), python(TORCH_USER, **pipes)
                address = owner.stdout.readline()
                self.assertTrue(address, "the owner failed")
                output, _ = user.communicate(address, timeout=120)
                self.assertEqual(output, "equal\n")
                output, _ = owner.communicate("end\n", timeout=120)
                self.assertEqual(output, "equal\n")

    def test_graph_is_captured_during_transfers(self):
        """In the global mode, the default one, while a transfer copies and waits for a stream."""
        self.needs_device()
        here, there = self.filled(16 << 20, 1), self.filled(16 << 20, 0)
        counter, stream = self.torch.zeros(1, device="cuda"), self.torch.cuda.Stream()
        self.torch.cuda.synchronize()
        with handfast.Engine(transport="tcp") as owner, handfast.Engine(transport="tcp") as user:
            served, _ = owner.register(there), user.register(here)
            peer, ends, failures, moved = user.peer(owner.address), threading.Event(), [], []

            def move():
                while not ends.is_set():
                    try:
                        peer.write(here, served.address, stream=stream)
                        moved.append(1)
                    except handfast.HandfastError as error:
                        failures.append(str(error))

            thread = threading.Thread(target=move)
            graphs = []
            try:
                for _ in range(10):
                    graphs.append(self.torch.cuda.CUDAGraph())
                    before = len(moved)
                    with self.torch.cuda.graph(graphs[-1]):
                        if not thread.is_alive():
                            thread.start()
                        counter += 1
                        limit = time.monotonic() + PATIENCE_S
                        while len(moved) < before + 2 and not failures:
                            self.assertLess(time.monotonic(), limit)
                            time.sleep(0.001)
            finally:
                ends.set()
                thread.join()
            self.assertEqual(failures, [])
        for graph in graphs:
            graph.replay()
        self.torch.cuda.synchronize()
        self.assertEqual((counter.item(), bool((there == 1).all())), (10, True))

    def test_freed_tensors_are_refused(self):
        self.needs_device()
        cache = numpy.zeros(32 << 20, dtype=numpy.uint8)
        with handfast.Engine(transport="tcp") as owner, handfast.Engine(transport="tcp") as user:
            served, peer = owner.register(cache), user.peer(owner.address)
            tensor = self.filled(32 << 20, 3)
            pieces = [tensor.data_ptr()], [served.address], [1 << 20]
            user.register_address(tensor.data_ptr(), tensor.numel())
            peer.write_many(*pieces)
            self.assertEqual(cache[: 1 << 20].tobytes(), b"\3" * (1 << 20))
            del tensor
            gc.collect()
            self.torch.cuda.empty_cache()
            with self.assertRaises(handfast.HandfastError) as caught:
                peer.write_many(*pieces)
            self.assertEqual(caught.exception.id, "GPU-POINTER")

    def test_pinned_tensors_are_host_memory(self):
        self.needs_device()
        here = self.filled(1 << 20, 7)
        there = self.torch.zeros(1 << 20, dtype=self.torch.uint8, pin_memory=True)
        self.moved(here, there)
        self.assertTrue(bool((there == 7).all()))

    def test_managed_memory_and_contexts_that_have_ended_are_refused(self):
        self.needs_device()
        self.torch.cuda.init()
        driver = ctypes.CDLL("libcuda.so.1")
        managed = ctypes.c_uint64()
        nbytes = ctypes.c_size_t(1 << 16)
        self.assertEqual(driver.cuMemAllocManaged(ctypes.byref(managed), nbytes, ctypes.c_uint(1)), 0)
        cache = numpy.zeros(1 << 16, dtype=numpy.uint8)
        with handfast.Engine(transport="tcp") as owner, handfast.Engine(transport="tcp") as user:
            with self.assertRaisesRegex(handfast.HandfastError, "moves between host and device"):
                user.register_address(managed.value, 1 << 16)
            driver.cuMemFree_v2(managed)
            served, peer = owner.register(cache), user.peer(owner.address)
            context, address = ctypes.c_void_p(), ctypes.c_uint64()
            create = driver.cuCtxCreate_v2
            self.assertEqual(create(ctypes.byref(context), ctypes.c_uint(0), ctypes.c_int(0)), 0)
            self.assertEqual(driver.cuMemAlloc_v2(ctypes.byref(address), nbytes), 0)
            driver.cuMemsetD8_v2(address, ctypes.c_ubyte(5), nbytes)
            driver.cuCtxSynchronize()
            driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
            local = user.register_address(address.value, 1 << 16)
            pieces = [address.value], [served.address], [1 << 16]
            peer.write_many(*pieces)
            self.assertEqual(cache.tobytes(), b"\5" * (1 << 16))
            self.assertEqual(driver.cuCtxDestroy_v2(context), 0)
            with self.assertRaises(handfast.HandfastError) as caught:
                peer.write_many(*pieces)
            self.assertEqual(caught.exception.id, "GPU-POINTER")
            local.close()


if __name__ == "__main__":
    unittest.main()
