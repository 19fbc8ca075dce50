"""The place of a buffer, and the stream that works on it."""

from __future__ import annotations

import ctypes
import math
from typing import Any, NamedTuple, TypeAlias

#: The number of a stream, and the number of its device, if known.
Stream: TypeAlias = "tuple[int, int | None]"

# Devices of DLPack.
_CPU, _CUDA, _PINNED, _MANAGED = 1, 2, 3, 13
#: DLPack's stream of a producer that need not wait.
_UNORDERED = -1


class Place(NamedTuple):
    """A buffer's bytes."""

    address: int
    nbytes: int
    #: Keeps the bytes alive.
    owner: object
    #: The number of its CUDA device; None in host memory.
    device: int | None = None
    #: The stream that the buffer's own interface names.
    stream: int | None = None


class _Tensor(ctypes.Structure):
    """``DLTensor``."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Versioned(ctypes.Structure):
    """``DLManagedTensorVersioned``."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


# Flags of DLPack.
_READ_ONLY, _IS_COPIED = 1, 2
_MAJOR_VERSION = 1

_is_capsule = ctypes.pythonapi.PyCapsule_IsValid
_is_capsule.restype, _is_capsule.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def locate(buffer: Any, stream: Stream | None = None) -> Place:
    """Return the place of a contiguous, writable buffer.

    Takes tensors of torch on the CPU or a CUDA device, arrays of numpy, objects with
    ``__cuda_array_interface__`` or ``__dlpack__``, and every object of the buffer protocol. ``stream``
    is passed to a producer of DLPack, whose work is then ordered before that of the stream.
    """
    if hasattr(buffer, "data_ptr"):
        return _of_torch(buffer)
    if hasattr(buffer, "__cuda_array_interface__"):
        return _of_cuda_array(buffer)
    # A number of numpy has the interface too, of a copy that ends at once.
    if hasattr(buffer, "__array_interface__") and hasattr(buffer, "ctypes"):
        return _of_numpy(buffer)
    if hasattr(buffer, "__dlpack__"):
        return _of_dlpack(buffer, stream)
    view = memoryview(buffer)
    if view.readonly:
        raise ValueError(f"the buffer is read-only: {type(buffer).__name__}")
    if not view.contiguous:
        raise ValueError("the buffer is not contiguous")
    # Holds the buffer's export, so that its owner cannot resize it.
    export = (ctypes.c_char * view.nbytes).from_buffer(view)
    return Place(ctypes.addressof(export), view.nbytes, export)


def in_order(buffer: Any, stream: Any) -> tuple[Place, Stream | None]:
    """Return the place of a buffer, and the stream that a transfer of it waits for: the given one, else
    that of the buffer's own interface, or None."""
    given = stream_of(stream)
    place = locate(buffer, given)
    if given is None:
        return place, None if place.stream is None else (place.stream, place.device)
    number, device = given
    return place, (number, place.device if device is None else device)


def stream_of(stream: Any) -> Stream | None:
    """Return the number of a stream and its device: of an integer, a stream of torch, or an object with
    ``__cuda_stream__``."""
    if stream is None:
        return None
    if hasattr(stream, "cuda_stream"):
        return _number(stream.cuda_stream), getattr(getattr(stream, "device", None), "index", None)
    if hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        _, number = protocol() if callable(protocol) else protocol
        return _number(number), None
    return _number(stream), None


def _number(stream: Any) -> int:
    try:
        number = stream.__index__()
    except AttributeError:
        text = "a stream is a number, a stream of torch, or an object with __cuda_stream__"
        raise TypeError(f"{text}, not a {type(stream).__name__}") from None
    if not 0 <= number < 1 << 64:
        raise ValueError(f"no stream has the number {number}")
    return int(number)


def _of_torch(tensor: Any) -> Place:
    device = getattr(tensor, "device", None)
    kind = "cpu" if device is None else device.type
    if kind not in ("cpu", "cuda"):
        text = f"memory of the device {device} is not supported: use a CPU or a CUDA tensor"
        raise ValueError(text)
    if not tensor.is_contiguous():
        raise ValueError("the tensor is not contiguous: call .contiguous() first")
    nbytes = tensor.numel() * tensor.element_size()
    # Without a number it is torch's current device, which the address tells.
    ordinal = device.index if device is not None and kind == "cuda" else None
    return Place(tensor.data_ptr(), nbytes, tensor, ordinal)


def _of_numpy(array: Any) -> Place:
    address, read_only = array.__array_interface__["data"]
    if read_only:
        raise ValueError("the array is read-only")
    if array.dtype.hasobject:
        raise ValueError("the array has Python objects, which a peer must not write")
    if not array.flags["C_CONTIGUOUS"]:
        raise ValueError("the array is not contiguous: use numpy.ascontiguousarray")
    return Place(address, array.nbytes, array)


def _of_cuda_array(array: Any) -> Place:
    interface = array.__cuda_array_interface__
    address, read_only = interface["data"]
    if read_only:
        raise ValueError("the array is read-only")
    shape, typestr = interface["shape"], interface["typestr"]
    if typestr[1] == "O":
        raise ValueError("the array has Python objects, which a peer must not write")
    size = int(typestr[2:])
    strides = interface.get("strides")
    if strides is not None:
        _check_contiguous(shape, strides, size)
    stream = interface.get("stream")
    return Place(address, math.prod(shape) * size, array, None, stream)


def _of_dlpack(producer: Any, stream: Stream | None) -> Place:
    kind, device = producer.__dlpack_device__()
    if kind not in (_CPU, _CUDA, _PINNED, _MANAGED):
        text = f"memory of DLPack's device ({int(kind)}, {device}) is not supported"
        raise ValueError(f"{text}: use one of the CPU or of CUDA")
    order = None
    if kind == _CUDA:
        # DLPack numbers the legacy default stream 1.
        order = _UNORDERED if stream is None else stream[0] or 1
    try:
        capsule = producer.__dlpack__(
            stream=order, max_version=(_MAJOR_VERSION, 0), copy=False
        )
    except TypeError:
        # A producer from before versions, which copies nothing.
        capsule = producer.__dlpack__(stream=order)
    if _is_capsule(capsule, b"dltensor_versioned"):
        versioned = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        if versioned.major > _MAJOR_VERSION:
            raise ValueError(f"DLPack {versioned.major}.{versioned.minor} is not supported")
        if versioned.flags & _READ_ONLY:
            raise ValueError("the array is read-only")
        if versioned.flags & _IS_COPIED:
            raise ValueError("__dlpack__ returned a copy, which peers would access in its place")
        tensor = versioned.tensor
    elif _is_capsule(capsule, b"dltensor"):
        tensor = _Tensor.from_address(_pointer(capsule, b"dltensor"))
    else:
        raise ValueError("__dlpack__ returned no tensor, or one that was used before")
    shape = tensor.shape[: tensor.ndim] if tensor.ndim else []
    if shape and tensor.strides:
        _check_contiguous(shape, tensor.strides[: tensor.ndim])
    nbytes = (math.prod(shape) * tensor.bits * tensor.lanes + 7) // 8
    # The end of a capsule that nobody used ends the tensor.
    owner = (producer, capsule)
    ordinal = int(device) if kind == _CUDA else None
    return Place((tensor.data or 0) + tensor.byte_offset, nbytes, owner, ordinal)


def _check_contiguous(shape: Any, strides: Any, unit: int = 1) -> None:
    """Raise unless elements are in the order of C, one behind the other. ``unit`` is the stride of one
    element."""
    expected = unit
    for length, stride in reversed(list(zip(shape, strides))):
        if length != 1 and stride != expected and 0 not in tuple(shape):
            raise ValueError("the array is not contiguous: make a contiguous copy first")
        expected *= length
