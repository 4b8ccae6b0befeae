"""A graph that waits for an answer: `langgraph_interrupt.py ADDRESS THREAD [ANSWER]`.

Starts the thread, or continues it with the answer; prints the texts of its state.
"""

import json
import operator
import sys
from typing import Annotated, TypedDict

import treering
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from treering.langgraph import TreeringSaver


class Said(TypedDict):
    said: Annotated[list[str], operator.add]


address, thread, answer = sys.argv[1:]
builder = StateGraph(Said)
builder.add_node("ask", lambda state: {"said": [f"you said {interrupt('what?')}"]})
builder.add_node("then", lambda state: {"said": ["then"]})
builder.add_edge(START, "ask")
builder.add_edge("ask", "then")
with treering.connect(address) as db:
    graph = builder.compile(checkpointer=TreeringSaver(db))
    config = {"configurable": {"thread_id": thread}}
    graph.invoke(Command(resume=answer) if answer else {"said": ["begin"]}, config)
    print(json.dumps(graph.get_state(config).values["said"]))
