"""LangGraph in Treering: a checkpointer and a store.

    from treering.langgraph import TreeringSaver

    graph = builder.compile(checkpointer=TreeringSaver(treering.local("./store")))

A thread is a conversation. The messages of its state are there as messages, tool calls and
results: searched, forked, sent to any provider. Needs `pip install treering[langgraph]`.
"""

from treering.langgraph._saver import TreeringSaver, messages
from treering.langgraph._store import TreeringStore

__all__ = ["TreeringSaver", "TreeringStore", "messages"]
