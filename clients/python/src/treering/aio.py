"""The client for asyncio: the API of `treering`, with `await`.

async with treering.aio.local("./store") as db:
    conv = await db.create("First steps")
    await conv.user("Where is the port set?")
    async for event in conv.events():
        print(event.kind)
"""

from treering._async.calls import AsyncAnswer, AsyncCall
from treering._async.client import AsyncTreering, connect, local
from treering._async.conversation import AsyncConversation, AsyncSubContext
from treering._async.items import AsyncItems
from treering._async.replay import AsyncReplay
from treering._async.subscription import AsyncContextWatch, AsyncSubscription

__all__ = [
    "AsyncAnswer",
    "AsyncCall",
    "AsyncContextWatch",
    "AsyncConversation",
    "AsyncItems",
    "AsyncReplay",
    "AsyncSubContext",
    "AsyncSubscription",
    "AsyncTreering",
    "connect",
    "local",
]
