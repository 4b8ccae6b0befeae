"""Stores items in a session of the OpenAI Agents SDK: `openai_session.py ADDRESS NAME ITEMS`.

Prints all items of the session.
"""

import asyncio
import json
import sys

import treering
from treering.openai_agents import TreeringSession

address, name, items = sys.argv[1:]


async def work(session):
    await session.add_items(json.loads(items))
    return await session.get_items()


with treering.connect(address) as db:
    print(json.dumps(asyncio.run(work(TreeringSession(name, db)))))
