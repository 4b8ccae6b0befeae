"""The five kinds of agent memory that Treering must support. Each is a history that
uses the features, with the texts that the next request must and must not have.

The stories have their own namespace, because one of them writes its long-term
context.
"""

import json
from typing import NamedTuple

from .author import Author, tell
from .cuts import TURN_END, Cut

HEAD = Cut("head")
KNOWLEDGE = Cut("with knowledge", policy='{"enhancers": {"knowledge": {"enabled": true}}}')


class Expected(NamedTuple):
    conversation: str
    cut: Cut
    # Texts that the request must have and must not have, as they appear in JSON.
    present: tuple = ()
    absent: tuple = ()


class Systems(Author):
    """The stories, appended to a server."""

    source = "systems"

    def __init__(self, client, api, server):
        super().__init__(client)
        self.api, self.server = api, server

    def all(self):
        """The expectations of each story by name."""
        return {
            "tool context with feedback loop": self.tool_context_loop(),
            "local-first session memory": self.session_memory(),
            "context manager": self.context_manager(),
            "tool discovery life cycle": self.tool_discovery(),
            "tool context management": self.tool_knowledge(),
        }

    def told(self, *events, **where):
        return tell(self.server.db, events, **where)

    def ask(self, method, request):
        """Calls a method of the Contexts service."""
        how = {"metadata": self.server.db.metadata, "timeout": 30}
        return getattr(self.server.contexts, method)(request, **how)

    def set(self, key, value, conversation=""):
        """Sets a key of a conversation's active context or of the long-term context."""
        entry = self.pb.ContextSet(key=key, value=json.dumps(value).encode(), provider="notes")
        request = self.api.SetContextRequest(conversation_id=conversation, set=[entry])
        self.ask("Set", request)

    def tool_context_loop(self):
        """The policy `turn_end` keeps results of the open turn in full, and replaces
        those of finished turns by snapshots with a reference."""
        rows = json.dumps([{"row": n, "value": n * n} for n in range(400)])
        conversation = self.told(
            self.created("loop"),
            self.say("user", self.text("Query both.")),
            self.say("assistant", self.text("At once.")),
            self.call("call_1", "query", {"table": "a"}),
            self.call("call_2", "query", {"table": "b"}),
            self.result("call_2", self.text(rows)),
            self.result("call_1", self.text("no such table"), error="no such table"),
            self.say("assistant", self.text("One has rows.")),
            self.say("user", self.text("Again.")),
            self.say("assistant", self.text("Again.")),
            self.call("call_1", "query", {"table": "c"}),
            self.result("call_1", self.text("open and in full")),
        )
        snapshot = ("[short #", f"treering:{conversation}/", "open and in full")
        middle = '\\"row\\": 200,'
        return [
            Expected(conversation, HEAD, ("159201", "open and in full"), ("[short #",)),
            Expected(conversation, TURN_END, snapshot, (middle,)),
        ]

    def session_memory(self):
        """Separate long-term context and active context, and the dialogue's summary
        in the request."""
        self.set("team", "they use tabs")
        conversation = self.told(
            self.created("session"),
            self.say("user", self.text("Where were we?")),
            self.say("assistant", self.text("In the parser.")),
            self.say("user", self.text("Go on.")),
        )
        self.set("open file", {"path": "parser.rs"}, conversation)
        summary = self.pb.SummaryRecorded(
            content="They mend the parser.", from_revision=2, to_revision=3
        )
        self.told(self.pb.NewEvent(summary_recorded=summary), conversation=conversation)
        present = ("SYSTEM_CONTEXT", "parser.rs", "they use tabs", "They mend the parser.")
        return [Expected(conversation, HEAD, present)]

    def context_manager(self):
        """A branch with its own system prompt, an approval, and a sub-context that
        returns its summary as the result of its call."""
        pb = self.pb
        conversation = self.told(
            self.created("manager"),
            pb.NewEvent(system_prompt_set=pb.SystemPromptSet(id="s", content="Be brief.")),
            pb.NewEvent(user_prompt_set=pb.UserPromptSet(id="u", content="In English.")),
            self.say("user", self.text("Look into it.")),
            self.say("assistant", self.text("I ask another.")),
            self.call("call_1", "delegate", {"to": "reader"}, pending=True),
            self.decided("call_1", "approved"),
        )
        spawn = self.api.SpawnRequest(
            conversation_id=conversation,
            call_id="call_1",
            purpose="read",
            title="The reader",
            system_prompt="Read only.",
        )
        child = self.told(
            self.say("user", self.text("Read a.txt")),
            self.say("assistant", self.text("It says: one, two.")),
            conversation=self.ask("Spawn", spawn).child_id,
        )
        summary = "a.txt counts to two"
        self.ask("Return", self.api.ReturnRequest(conversation_id=child, summary=summary))
        head = self.told(self.say("assistant", self.text("Done.")), conversation=conversation)
        self.server.fork(head, "other", "Be long.")
        self.told(self.say("user", self.text("Again?")), conversation=head, branch="other")
        other = Cut("a branch with its own prompt", branch="other")
        return [
            Expected(conversation, HEAD, ("Be brief.", "In English.", "a.txt counts to two")),
            Expected(conversation, other, ("Be long.", "Again?"), ("Be brief.",)),
            Expected(child, HEAD, ("Read only.", "one, two"), ("Be brief.",)),
        ]

    def tool_discovery(self):
        """Guidance for a discovered tool only. A compaction drops the guidance and the
        discovered tool, and keeps the other tools."""
        found = self.pb.ToolsDiscovered(names=["plot"])
        events = [
            self.created("discovery"),
            self.define([("find_tools", False), ("plot", True), ("count", True)]),
            self.say("user", self.text("Plot a.csv")),
            self.say("assistant"),
            self.call("call_1", "find_tools", {"path": "plots"}),
            self.result("call_1", self.text("found one")),
            self.pb.NewEvent(tools_discovered=found),
            self.say("assistant", self.text("I found a tool.")),
        ]
        conversation = self.told(*events)
        compacted = self.pb.Compacted(
            summary="A plot was asked for.",
            cut_revision=len(events),
            trigger=self.pb.COMPACTION_TRIGGER_MANUAL,
        )
        self.told(
            self.pb.NewEvent(compacted=compacted),
            self.say("user", self.text("And now?")),
            conversation=conversation,
        )
        before = Cut("before the compaction", as_of=len(events))
        told = ("[TOOL GUIDANCE]", "How to plot.", "Does plot.", "Does find_tools.")
        reset = ("[TOOL GUIDANCE]", "Does plot.", "found one")
        return [
            Expected(conversation, before, told, ("How to count.", "Does count.")),
            Expected(conversation, HEAD, ("A plot was asked for.", "Does find_tools."), reset),
        ]

    def tool_knowledge(self):
        """Knowledge from successful and failed results, with the files that they listed."""
        conversation = self.told(
            self.created("knowledge"),
            self.say("user", self.text("What is here?")),
            self.say("assistant"),
            self.call("call_1", "list_files", {"cwd": "/srv/data"}),
            self.result("call_1", self.text('{"files": ["rain.csv", "wind.csv"]}')),
            self.say("assistant"),
            self.call("call_2", "inspect_file", {"path": "rain.csv"}),
            self.result("call_2", self.text("mm, day"), structured={"variables": ["mm", "day"]}),
            self.say("assistant"),
            self.call("call_3", "inspect_file", {"path": "snow.csv"}),
            self.result("call_3", error="no such file: snow.csv"),
            self.say("assistant", self.text("Rain and wind.")),
            self.say("user", self.text("Compare them.")),
        )
        present = ("rain.csv", "wind.csv", "no such file: snow.csv", "Compare them.")
        known = (*present, "TOOL_KNOWLEDGE", "Working directory: /srv/data")
        return [Expected(conversation, HEAD, present), Expected(conversation, KNOWLEDGE, known)]
