"""A checkpointer and a store for LangGraph.

    from treering.langgraph import TreeringSaver

    graph = builder.compile(checkpointer=TreeringSaver(treering.local("./store")))

A thread is a conversation, and the messages of its state are events. You can search and fork them,
and build requests for any provider. Needs `pip install treering[langgraph]`.
"""

from treering.langgraph._saver import TreeringSaver, messages
from treering.langgraph._store import TreeringStore

__all__ = ["TreeringSaver", "TreeringStore", "messages"]
