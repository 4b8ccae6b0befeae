"""Makes events for the stories of `oddities.py` and `systems.py`, and appends them
to a server."""

import json

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


class Author:
    """Makes events with the client's generated messages."""

    # The source of the conversations.
    source = ""

    def __init__(self, client):
        self.client, self.pb = client, client.event_pb2

    def created(self, title, model="", policy=None):
        body = self.pb.ConversationCreated(title=title, source=self.source, source_id=title)
        body.config.model_id = model
        if policy is not None:
            body.policies["context"] = json.dumps(policy)
        return self.pb.NewEvent(conversation_created=body)

    def say(self, role, *parts):
        role = self.pb.Role.Value(f"ROLE_{role.upper()}")
        return self.pb.NewEvent(message_appended=self.pb.MessageAppended(role=role, parts=parts))

    def text(self, text):
        return self.pb.ContentPart(text=text)

    def medium(self, kind, media_type, **source):
        media = self.pb.Media(media_type=media_type, name="a name", **source)
        return self.pb.ContentPart(**{kind: media})

    def thought(self, provider, model, signature, **more):
        made = self.pb.Reasoning(provider=provider, model=model, signature=signature, **more)
        return self.pb.ContentPart(reasoning=made)

    def call(self, call_id, tool, arguments, pending=False):
        return self.client.tool_call(call_id, tool, arguments, pending)

    def result(self, call_id, *parts, error="", structured=None):
        body = self.pb.ToolResultRecorded(
            call_id=call_id, success=not error, error_message=error, parts=parts
        )
        if structured is not None:
            body.structured = json.dumps(structured).encode()
        return self.pb.NewEvent(tool_result_recorded=body)

    def decided(self, call_id, decision):
        """A decision without the hash of the arguments; `tell` gets that from the server."""
        value = self.pb.Decision.Value(f"DECISION_{decision.upper()}")
        body = self.pb.ApprovalDecided(
            call_id=call_id, decision=value, decided_by="alice", reason="not on Fridays"
        )
        return self.pb.NewEvent(approval_decided=body)

    def define(self, tools):
        definitions = [
            self.pb.ToolDefinition(
                name=name,
                description=f"Does {name}.",
                input_schema=json.dumps(SCHEMA).encode(),
                guidance=f"How to {name}.",
                discoverable=found_later,
            )
            for name, found_later in tools
        ]
        return self.pb.NewEvent(tools_defined=self.pb.ToolsDefined(tools=definitions))

    def context_set(self, key, value):
        body = self.pb.ContextSet(key=key, value=json.dumps(value).encode(), provider="editor")
        return self.pb.NewEvent(context_set=body)


def tell(db, events, conversation="", branch=""):
    """Appends a story, one event at a time. Returns its conversation."""
    for event in events:
        if event.HasField("approval_decided"):
            decided = event.approval_decided
            waiting = {call.call_id: call for call in db.pending(conversation)}
            decided.arguments_hash = waiting[decided.call_id].arguments_hash
        done = db.append([event], conversation, branch)
        conversation = done.events[0].conversation_id
    return conversation
