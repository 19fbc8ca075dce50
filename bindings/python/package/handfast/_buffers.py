"""The address of a buffer."""

from __future__ import annotations

import ctypes
from typing import Any


def locate(buffer: Any) -> tuple[int, int, object]:
    """Return address and length in bytes of a contiguous, writable buffer in host memory, and the
    object that keeps it alive.

    Takes CPU tensors of torch, arrays of numpy, and every object of the buffer protocol.
    """
    if hasattr(buffer, "data_ptr"):
        device = getattr(buffer, "device", None)
        if device is not None and device.type != "cpu":
            raise ValueError(f"memory of the device {device} is not supported: use a CPU tensor")
        if not buffer.is_contiguous():
            raise ValueError("the tensor is not contiguous: call .contiguous() first")
        return buffer.data_ptr(), buffer.numel() * buffer.element_size(), buffer
    # A number of numpy has the interface too, of a copy that ends at once.
    if hasattr(buffer, "__array_interface__") and hasattr(buffer, "ctypes"):
        address, read_only = buffer.__array_interface__["data"]
        if read_only:
            raise ValueError("the array is read-only")
        if buffer.dtype.hasobject:
            raise ValueError("the array has Python objects, which a peer must not write")
        if not buffer.flags["C_CONTIGUOUS"]:
            raise ValueError("the array is not contiguous: use numpy.ascontiguousarray")
        return address, buffer.nbytes, buffer
    view = memoryview(buffer)
    if view.readonly:
        raise ValueError(f"the buffer is read-only: {type(buffer).__name__}")
    if not view.contiguous:
        raise ValueError("the buffer is not contiguous")
    # Holds the buffer's export, so that its owner cannot resize it.
    export = (ctypes.c_char * view.nbytes).from_buffer(view)
    return ctypes.addressof(export), view.nbytes, export
