"""Stores lines in a session of the Claude Agent SDK: `claude_sessions.py ADDRESS KEY LINES`.

Prints all lines of the session, and the summaries of the project.
"""

import asyncio
import json
import sys

import treering
from treering.claude_agent_sdk import TreeringSessionStore

address, key, lines = sys.argv[1:]
given = json.loads(key)
named = {"project_key": given["projectKey"], "session_id": given["sessionId"]}


async def work(store):
    await store.append(named, json.loads(lines))
    summaries = await store.list_session_summaries(named["project_key"])
    return {
        "loaded": await store.load(named),
        "summaries": [each["data"] for each in summaries],
    }


with treering.connect(address) as db:
    print(json.dumps(asyncio.run(work(TreeringSessionStore(db)))))
