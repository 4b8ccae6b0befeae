"""First calls of a program in Python: `langgraph_first_calls.py ADDRESS [STEPS]`.

Puts this many steps, each with the last six messages. Then gets the latest checkpoint, gets it by
its id, and puts one more, each as the first call of a program. Prints the results, and how many
events each call read.
"""

import json
import sys

import treering
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from treering.langgraph import TreeringSaver, _lookup
from treering.types import Event

THREAD = {"configurable": {"thread_id": "thread", "checkpoint_ns": ""}}
read = 0
of, pages = Event.of, _lookup.read_pages


def counted(proto):
    global read
    read += 1
    return of(proto)


def counted_pages(*given):
    global read
    for page in pages(*given):
        read += len(page)
        yield page


Event.of, _lookup.read_pages = staticmethod(counted), counted_pages


def put(saver, config, step, messages):
    checkpoint = empty_checkpoint()
    checkpoint["id"] = str(uuid6(clock_seq=step))
    checkpoint["channel_values"] = {"messages": messages, "step": step}
    checkpoint["channel_versions"] = {"messages": f"{step + 2:032}.0", "step": f"{step + 2:032}.0"}
    metadata = {"source": "loop", "step": step}
    return saver.put(config, checkpoint, metadata, checkpoint["channel_versions"])


def texts(found):
    return [message.text for message in found.checkpoint["channel_values"]["messages"]]


address, *steps = sys.argv[1:]
with treering.connect(address) as db:
    saver, config, said = TreeringSaver(db), THREAD, []
    for step in range(int(steps[0]) if steps else 0):
        kind = AIMessage if step % 2 else HumanMessage
        said = [*said, kind(f"Message {step}", id=f"m{step}")][-6:]
        config = put(saver, config, step, said)
    told = {}
    for name in ("latest", "by id", "put"):
        read = 0
        saver = TreeringSaver(db)
        if name == "put":
            messages = [*found.checkpoint["channel_values"]["messages"][1:], HumanMessage("More")]
            step = found.metadata["step"] + 1
            put(saver, found.config, step, messages)
            told[name] = {"read": read}
            continue
        found = saver.get_tuple(found.config if name == "by id" else THREAD)
        told[name] = {"texts": texts(found), "read": read}
    conversation = saver.conversation("thread")
    told["branches"] = len(conversation.branches())
    told["sound"] = db.verify(deep=True).sound
    print(json.dumps(told))
