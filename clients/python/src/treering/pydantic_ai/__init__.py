"""A `ConversationStore` of Pydantic AI.

    from pydantic_ai import Agent, Conversation
    from treering.pydantic_ai import TreeringConversationStore

    store = TreeringConversationStore(treering.local("./store"))
    agent = Agent("openai-chat:gpt-4o", capabilities=[store.steps()])
    conversation = await store.load("user-42") or Conversation(conversation_id="user-42")
    result = await agent.run("Hello", conversation=conversation)

With `steps`, each message is stored as it comes. Without it, call `await store.save(result)` after
a run. Needs `pip install treering[pydantic-ai]`.
"""

from treering.pydantic_ai._steps import Steps
from treering.pydantic_ai._store import TreeringConversationStore

__all__ = ["Steps", "TreeringConversationStore"]
