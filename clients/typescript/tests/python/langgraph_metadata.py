"""Puts a checkpoint with NaN in its metadata: `langgraph_metadata.py ADDRESS`."""

import math
import sys

import treering
from langgraph.checkpoint.base import empty_checkpoint
from treering.langgraph import TreeringSaver

with treering.connect(sys.argv[1]) as db:
    config = {"configurable": {"thread_id": "thread", "checkpoint_ns": ""}}
    user = {"name": "ada"}
    said = {"step": 1, "score": math.nan, "text": "NaN, or Infinity", "user": user}
    TreeringSaver(db).put(config, empty_checkpoint(), said, {})
    print("{}")
