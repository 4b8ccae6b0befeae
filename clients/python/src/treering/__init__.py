"""Client for Treering, an event-sourced context storage engine for LLM agents.

    import treering

    db = treering.local("./store")
    conv = db.create("First steps", system="You are brief.")
    conv.user("Where is the port set?")
    body = conv.request("anthropic", model="claude-sonnet-4-5", budget=60_000)

`treering.aio` is the API for asyncio, `treering.new` makes events for batches, and
`treering.errors` has the exceptions.
"""

from treering import aio, errors, items, new
from treering._requests import SearchFilters
from treering._sync.calls import Answer, Call
from treering._sync.client import Treering, connect, local
from treering._sync.conversation import Conversation, SubContext
from treering._sync.items import Items
from treering._sync.replay import Replay
from treering._sync.subscription import ContextWatch, Subscription
from treering.errors import *  # noqa: F403
from treering.errors import __all__ as _errors
from treering.types import (
    Branch,
    Compaction,
    ContextChange,
    ConversationState,
    ConversationSummary,
    Difference,
    Erased,
    Event,
    Hit,
    Hits,
    Item,
    Receipt,
    Request,
    Rewound,
    ToolCall,
    ToolResult,
)

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "Branch",
    "Call",
    "Compaction",
    "ContextChange",
    "ContextWatch",
    "Conversation",
    "ConversationState",
    "ConversationSummary",
    "Difference",
    "Erased",
    "Event",
    "Hit",
    "Hits",
    "Item",
    "Items",
    "Receipt",
    "Replay",
    "Request",
    "Rewound",
    "SearchFilters",
    "SubContext",
    "Subscription",
    "ToolCall",
    "ToolResult",
    "Treering",
    "aio",
    "connect",
    "errors",
    "items",
    "local",
    "new",
]
__all__ += _errors
