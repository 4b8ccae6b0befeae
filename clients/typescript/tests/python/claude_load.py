"""Prints the lines of a session: `claude_load.py ADDRESS`."""

import asyncio
import json
import sys

import treering
from treering.claude_agent_sdk import TreeringSessionStore

KEY = {"project_key": "proj", "session_id": "6a2c8c0e-7e0a-4e0e-9a62-0d5a0c1b2d3e"}
with treering.connect(sys.argv[1]) as db:
    print(json.dumps(asyncio.run(TreeringSessionStore(db).load(KEY))))
