"""Histories that the recorded ones lack: the engine accepts them, but a provider
may refuse them. The check builds a request at every revision of each.

A story is a list of events. All tool calls and results are invented. Media have
the shortest data that their formats allow.
"""

import base64

from .author import Author

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
PDF = b"%PDF-1.4\n%%EOF\n"
WAV = b"RIFF\x24\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00\x40\x1f\x00\x00"


class Oddities(Author):
    """The stories."""

    source = "oddities"

    def all(self):
        """The events of each story by name, beginning with the conversation's creation."""
        return {
            "media": self.media(),
            "reasoning": self.reasoning(),
            "calls that went wrong": self.calls(),
            "ids and names": self.ids_and_names(),
            "messages out of order": self.messages(),
            "tools and context": self.tools_and_context(),
            "after a compaction": self.compacted(),
        }

    # ---- stories ----

    def media(self):
        """Every medium, by content and by address, in a user message and in a tool result."""
        sources = [("image", "image/png", PNG), ("file", "application/pdf", PDF)]
        sources += [("audio", "audio/wav", WAV), ("file", "text/plain", b"plain")]
        sources += [("image", "image/tiff", b"II*\0"), ("file", "application/zip", b"PK")]
        parts = [self.medium(kind, of, data=data) for kind, of, data in sources]
        addresses = [
            self.medium(kind, of, uri=f"https://example.com/{at}")
            for at, (kind, of, _) in enumerate(sources)
        ]
        return [
            self.created("media"),
            self.say("user", self.text("See these."), *parts),
            self.say("assistant", self.text("And by address?")),
            self.say("user", *addresses),
            self.say("assistant", self.text("I take a picture."), *parts[:1]),
            self.call("call_1", "screenshot", {}),
            self.result("call_1", self.text("Taken."), *parts, *addresses),
            self.say("user", self.pb.ContentPart(json='{"a": [1, 2.50]}')),
            self.say("assistant", self.text("Seen.")),
        ]

    def reasoning(self):
        """Each provider's reasoning and unsigned reasoning, before calls, before a text,
        and alone in a message."""
        thoughts = [
            self.thought("anthropic", "claude-sonnet-4-5", b"c2lnbmVk", text="First."),
            self.thought("anthropic", "claude-sonnet-4-5", b"cmVkYWN0ZWQ=", redacted=True),
            self.thought("openai", "gpt-5", b"ZW5jcnlwdGVk", text="Second.", id="rs_1"),
            self.thought("google", "gemini-2.5-pro", b"\x01\x02\xff"),
            self.thought("", "", b"", text="Unsigned."),
        ]
        story = [
            self.created("reasoning", model="claude-sonnet-4-5"),
            self.say("user", self.text("Think.")),
        ]
        for at, thought in enumerate(thoughts):
            story += [
                self.say("assistant", thought),
                self.call(f"call_{at}", "think", {"about": at}),
                self.call(f"more_{at}", "think", {"about": at}),
                self.result(f"more_{at}", self.text("More.")),
                self.result(f"call_{at}", self.text("Done.")),
            ]
        story += [self.say("assistant", thought) for thought in thoughts]
        story += [
            self.say("user", self.text("And?")),
            self.say("assistant", *thoughts, self.text("So.")),
        ]
        return story

    def calls(self):
        """Calls that are denied, cancelled, pending, failed, or answered late, after a
        user message, empty or in another order."""
        return [
            self.created("calls"),
            self.say("user", self.text("Do five things.")),
            self.say("assistant", self.text("At once.")),
            self.call("call_denied", "delete", {"path": "/etc"}, pending=True),
            self.call("call_cancelled", "wait", {}),
            self.call("call_failed", "read", {"path": "b"}),
            self.call("call_late", "read", {"path": "c"}),
            self.call("call_never", "read", {"path": "d"}, pending=True),
            self.result("call_failed", error="no such file"),
            self.decided("call_denied", "denied"),
            self.pb.NewEvent(
                tool_call_cancelled=self.pb.ToolCallCancelled(
                    call_id="call_cancelled", reason=self.pb.CANCEL_REASON_TIMED_OUT, detail="30 s"
                )
            ),
            self.say("user", self.text("Are you there?")),
            self.result("call_late", self.text("C"), self.text("and more")),
            self.say("assistant", self.text("Yes.")),
            self.call("call_empty", "read", {"path": "e"}),
            self.result("call_empty"),
            self.decided("call_never", "approved"),
            self.result("call_never", self.text("D, after all")),
            self.say("assistant", self.text("Done. ")),
        ]

    def ids_and_names(self):
        """Ids and names that one provider accepts and another refuses, a reused id,
        arguments that are no object."""
        ids = ["functions.read:0", "call a|b", "ü", "x" * 120, "again", "again", "f_1", "f.1"]
        tools = ["read", "mcp/files.read", "1st", "lies das", "x" * 100, "größe", "read", "read"]
        arguments = [{}, [1, 2], "text", 7, None, {"b": 1.50, "a": {}}, {"path": "ü"}, True]
        story = [self.created("ids"), self.say("user", self.text("Call them all."))]
        story += [self.define([(name, False) for name in dict.fromkeys(tools)])]
        for call_id, tool, given in zip(ids, tools, arguments, strict=True):
            story += [
                self.say("assistant"),
                self.call(call_id, tool, given),
                self.result(call_id, self.text(f"result of {call_id}")),
            ]
        return [*story, self.say("assistant", self.text("All called."))]

    def messages(self):
        """An assistant message first, several messages of a role in a row, empty and
        blank ones, a result without a call, a system message in the middle."""
        orphan = self.say("tool", self.text("nobody asked"))
        orphan.message_appended.tool_call_id = "call_gone"
        named = self.say("user", self.text("I am Ann."))
        named.message_appended.author = "Ann Lee <ann>"
        return [
            self.created("messages"),
            self.say("assistant", self.text("I begin.")),
            self.say("assistant", self.text("And go on.")),
            orphan,
            self.say("user"),
            self.say("user", self.text("")),
            self.say("user", self.text(" \n")),
            self.say("assistant"),
            self.say("assistant", self.text("")),
            named,
            self.say("system", self.text("Mind the time.")),
            self.say("developer", self.text("And the cost.")),
            self.say("user", self.text("Go."), self.text("On.")),
            self.say("assistant", self.pb.ContentPart(refusal="I will not.")),
            self.say("system", self.text("")),
            self.say("assistant", self.text("  ")),
        ]

    def tools_and_context(self):
        """Prompts, discovered tools, guidance, active context, a dialogue summary,
        entities."""
        pb = self.pb
        guidance = pb.Guidance(tool="plot", text="One axis at a time.")
        covered = pb.SummaryRecorded(content="They plot a file.", from_revision=1, to_revision=9)
        return [
            self.created("context", policy={"compaction": {"keep_turns": 1}}),
            pb.NewEvent(system_prompt_set=pb.SystemPromptSet(id="s", content="Be brief.")),
            pb.NewEvent(user_prompt_set=pb.UserPromptSet(id="u", content="Plots are blue.")),
            self.define([("find_tools", False), ("plot", True), ("count", True)]),
            self.context_set("workspace", {"cwd": "/srv", "open": ["a.csv"]}),
            self.say("user", self.text("Plot a.csv")),
            self.say("assistant", self.text("I look for a tool.")),
            self.call("call_1", "find_tools", {"for": "plots"}),
            self.result("call_1", self.text("plot, count")),
            pb.NewEvent(tools_discovered=pb.ToolsDiscovered(names=["plot", "count"])),
            pb.NewEvent(guidance_given=pb.GuidanceGiven(guidance=[guidance])),
            self.say("assistant"),
            self.call("call_2", "plot", {"path": "a.csv"}),
            self.context_set("workspace", {"cwd": "/srv", "open": []}),
            self.result("call_2", self.text("plotted"), structured={"axes": 2}),
            pb.NewEvent(
                entities_noted=pb.EntitiesNoted(entities=[pb.Entity(id="e", kind="plot", name="p")])
            ),
            self.say("assistant", self.text("Here it is.")),
            pb.NewEvent(summary_recorded=covered),
            pb.NewEvent(
                tool_snapshot_recorded=pb.ToolSnapshotRecorded(
                    call_id="call_2", request_revision=13, summary="2 axes"
                )
            ),
            self.say("user", self.text("Another.")),
        ]

    def compacted(self):
        """A compaction that keeps a turn, then an open batch."""
        story = [self.created("compaction"), self.define([("read", False)])]
        for turn in range(3):
            story += [
                self.say("user", self.text(f"Question {turn}")),
                self.say("assistant", self.text("I read.")),
                self.call("call_1", "read", {"path": str(turn)}),
                self.result("call_1", self.text(f"content {turn}")),
                self.say("assistant", self.text(f"Answer {turn}")),
            ]
        cut = self.pb.Compacted(
            summary="Two questions were answered.",
            cut_revision=12,
            kept_turns=1,
            trigger=self.pb.COMPACTION_TRIGGER_MANUAL,
        )
        return [
            *story,
            self.pb.NewEvent(compacted=cut),
            self.say("assistant", self.text("One more thing.")),
            self.call("call_1", "read", {"path": "3"}),
            self.call("call_2", "read", {"path": "4"}),
            self.result("call_2", self.text("content 4")),
        ]
