"""Where and with which policy to build a conversation's next request.

A cut is a place in a branch's history and a policy. The places are those where
requests tend to break (in a batch of calls, right after a result). The policies
are those that leave events out.
"""

import json
from typing import NamedTuple

# A small budget is the tokens of the whole request divided by this.
BUDGET_SHARE = 3
BUDGET_TOKENS_MIN = 300


class Cut(NamedTuple):
    name: str
    # 0: the branch's head.
    as_of: int = 0
    branch: str = ""
    policy: str = ""


def budget(tokens):
    """The head, with a third of its tokens as the budget."""
    policy = {"budget_tokens": max(BUDGET_TOKENS_MIN, tokens // BUDGET_SHARE)}
    return Cut("small budget", policy=json.dumps(policy))


TURN_END = Cut("snapshots at turn end", policy=json.dumps({"tool_results": "turn_end"}))


def of(events, api):
    """The cuts of a history, head last, and one for each revision."""
    user = api.event_pb2.ROLE_USER
    places = {
        "after the first user message": first(
            e.revision for e in events if e.message_appended.role == user
        ),
        "in a batch": in_a_batch(events),
        "after a result": middle(
            [e.revision for e in events if e.HasField("tool_result_recorded")]
        ),
        "midway": middle([e.revision for e in events]),
        "after the compaction": first(
            e.revision for e in reversed(events) if e.HasField("compacted")
        ),
    }
    seen = {}
    for name, revision in places.items():
        if revision and revision != events[-1].revision:
            seen.setdefault(revision, Cut(name, as_of=revision))
    return [*seen.values(), Cut("head")]


def in_a_batch(events):
    """The first revision where one call of a batch has its result and another has
    none; otherwise the first call's revision, or None."""
    open_calls, any_open = set(), None
    for event in events:
        if event.HasField("tool_call_requested"):
            open_calls.add(event.tool_call_requested.call_id)
            any_open = any_open or event.revision
        elif event.HasField("tool_result_recorded"):
            open_calls.discard(event.tool_result_recorded.call_id)
            if open_calls:
                return event.revision
    return any_open


def first(revisions):
    return next(iter(revisions), None)


def middle(revisions):
    return revisions[len(revisions) // 2] if revisions else None
