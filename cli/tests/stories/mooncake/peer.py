"""A node of the released Mooncake Transfer Engine, told what to do line by line in JSON.

Arguments: name, metadata (P2PHANDSHAKE or a store), bytes of memory to register; protocol and
devices where they are not tcp and any.
Every line is answered with one line of JSON; the end of standard input ends the node.
"""

import ctypes
import json
import mmap
import os
import sys
import time

# The engine's own words go elsewhere: standard output is for answers.
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

from mooncake.engine import TransferEngine, TransferNotify, TransferOpcode  # noqa: E402

engine = TransferEngine()
memory = None


def answer(**values):
    answers.write(json.dumps(values) + "\n")
    answers.flush()


def target(told):
    """Where in the peer's memory: from the start of its first buffer, or an address."""
    if "address" in told:
        return told["address"]
    return engine.get_first_buffer_address(told["peer"]) + told["there"]


def move(told):
    way = engine.transfer_sync_write if told["cmd"] == "write" else engine.transfer_sync_read
    began = time.time_ns()
    rc = way(told["peer"], base + told["here"], target(told), told["bytes"])
    return {"rc": rc, "began": began, "ended": time.time_ns()}


def batch(told):
    way = engine.batch_transfer_sync_write
    if told["cmd"] == "batch_read":
        way = engine.batch_transfer_sync_read
    first = target(told)
    pieces = [(at, told["bytes"]) for at in range(0, told["bytes"] * told["count"], told["bytes"])]
    here = [base + told["here"] + at for at, _ in pieces]
    return {"rc": way(told["peer"], here, [first + at for at, _ in pieces], [n for _, n in pieces])}


def notify(told):
    word = TransferNotify(told["name"], told["message"])
    way = TransferOpcode.Write
    here, there = base + told["here"], target(told)
    return {"rc": engine.transfer_sync(told["peer"], here, there, told["bytes"], way, word)}


def load(told):
    with open(told["path"], "rb") as file:
        content = file.read()
    memory[told["here"] : told["here"] + len(content)] = content
    return {"bytes": len(content)}


def dump(told):
    with open(told["path"], "wb") as file:
        file.write(memory[told["here"] : told["here"] + told["bytes"]])
    return {}


def notifies(_):
    return {"kept": [[word.name, word.msg] for word in engine.get_notifies()]}


def probe(told):
    return {"rc": engine.send_probe(told["peer"])}


def unregister(_):
    return {"rc": engine.unregister_memory(base)}


commands = {
    "write": move,
    "read": move,
    "batch_write": batch,
    "batch_read": batch,
    "notify": notify,
    "notifies": notifies,
    "probe": probe,
    "load": load,
    "dump": dump,
    "unregister": unregister,
}

name, store, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
protocol, devices = sys.argv[4:6] if len(sys.argv) > 4 else ("tcp", "")
started = engine.initialize(name, store, protocol, devices)
memory = mmap.mmap(-1, size)
base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
registered = engine.register_memory(base, size)
answer(rc=started, registered=registered, port=engine.get_rpc_port(), address=base)
for line in sys.stdin:
    told = json.loads(line)
    try:
        answer(**commands[told["cmd"]](told))
    except Exception as error:
        answer(error=repr(error))
