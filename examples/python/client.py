"""Treering from Python: a small client to copy from.

The stubs are made from `proto/` when this module is loaded, so there is nothing
to generate by hand and no `protoc` to install:

    pip install -r requirements.txt

    from client import Treering, created, message, tool_call, tool_result

    db = Treering("127.0.0.1:7171")
    done = db.append([created("First steps"), message("user", "Where is the port set?")])
    db.search("port", at_least=done.events[-1].position)
"""

import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from grpc_tools import protoc

PROTO = Path(__file__).resolve().parents[2] / "proto"


def load_stubs(proto=PROTO):
    """Generates Python modules from the .proto files, once for each version of them."""
    files = sorted(proto.rglob("*.proto"))
    if not files:
        raise SystemExit(f"no .proto files in {proto}")
    name = hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()[:16]
    out = Path(tempfile.gettempdir()) / f"treering-python-{name}"
    if not (out / "complete").exists():
        out.mkdir(mode=0o700, exist_ok=True)
        # grpc_tools includes google/protobuf/*.proto.
        google = Path(protoc.__file__).parent / "_proto"
        args = [f"-I{proto}", f"-I{google}", f"--python_out={out}", f"--grpc_python_out={out}"]
        if protoc.main(["protoc", *args, *map(str, files)]) != 0:
            raise SystemExit("the stubs could not be made from proto/")
        (out / "complete").touch()
    sys.path.insert(0, str(out))


load_stubs()

from treering.v1 import context_pb2, context_pb2_grpc  # noqa: E402
from treering.v1 import conversation_pb2, conversation_pb2_grpc  # noqa: E402
from treering.v1 import event_pb2, events_pb2, events_pb2_grpc  # noqa: E402
from treering.v1 import search_pb2, search_pb2_grpc  # noqa: E402
from treering.v1 import tool_pb2, tool_pb2_grpc  # noqa: E402


def created(title):
    """The first event of a conversation."""
    return event_pb2.NewEvent(conversation_created=event_pb2.ConversationCreated(title=title))


def message(role, text):
    """A message. `role` is "system", "developer", "user", "assistant" or "tool"."""
    return event_pb2.NewEvent(
        message_appended=event_pb2.MessageAppended(
            role=event_pb2.Role.Value(f"ROLE_{role.upper()}"),
            parts=[event_pb2.ContentPart(text=text)],
        )
    )


def tool_call(call_id, tool, arguments, needs_approval=False):
    """A tool call. `arguments` is any JSON value."""
    need = "PENDING" if needs_approval else "NOT_REQUIRED"
    return event_pb2.NewEvent(
        tool_call_requested=event_pb2.ToolCallRequested(
            call_id=call_id,
            tool=tool,
            arguments=json.dumps(arguments).encode(),
            approval=event_pb2.ApprovalRequirement.Value(f"APPROVAL_REQUIREMENT_{need}"),
        )
    )


def tool_result(call_id, text, execution_time_ms=None):
    """A tool result."""
    return event_pb2.NewEvent(
        tool_result_recorded=event_pb2.ToolResultRecorded(
            call_id=call_id,
            success=True,
            execution_time_ms=execution_time_ms,
            parts=[event_pb2.ContentPart(text=text)],
        )
    )


def decision(call, decided, by, reason=""):
    """A decision ("approved" or "denied") on a call that `Pending` lists."""
    return event_pb2.NewEvent(
        approval_decided=event_pb2.ApprovalDecided(
            call_id=call.call_id,
            decision=event_pb2.Decision.Value(f"DECISION_{decided.upper()}"),
            # The decision is valid only for these arguments.
            arguments_hash=call.arguments_hash,
            decided_by=by,
            reason=reason,
        )
    )


def text_of(event):
    """The text of a stored message or tool result."""
    body = getattr(event, event.WhichOneof("body"))
    return "".join(part.text for part in getattr(body, "parts", []))


def refusal(error):
    """The reason of an `RpcError`, and its facts: (reason, metadata)."""
    status = rpc_status.from_call(error)
    for detail in status.details if status else []:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            return info.reason, dict(info.metadata)
    return "", {}


class Treering:
    """A connection. Every call works in one namespace.

    TREERING_TOKEN is the API key, if the server requires one. `https://host:port` is a server with
    TLS; the file TREERING_CA has its CA (default: the public ones).
    """

    def __init__(self, address, namespace="default"):
        options = [("grpc.max_receive_message_length", 64 << 20)]
        if address.startswith("https://"):
            ca = os.environ.get("TREERING_CA")
            roots = Path(ca).read_bytes() if ca else None
            credentials = grpc.ssl_channel_credentials(roots)
            address = address.removeprefix("https://")
            self.channel = grpc.secure_channel(address, credentials, options=options)
        else:
            self.channel = grpc.insecure_channel(address, options=options)
        self.metadata = [("treering-namespace", namespace)]
        if token := os.environ.get("TREERING_TOKEN"):
            self.metadata.append(("authorization", f"Bearer {token}"))
        self.events = events_pb2_grpc.EventsStub(self.channel)
        self.conversations = conversation_pb2_grpc.ConversationsStub(self.channel)
        self.contexts = context_pb2_grpc.ContextsStub(self.channel)
        self.tools = tool_pb2_grpc.ToolsStub(self.channel)
        self.index = search_pb2_grpc.SearchStub(self.channel)

    def append(self, events, conversation="", branch="", expected=None, key=""):
        """Appends all of the events or none.

        Without a conversation, creates one, whose id is in the answer; the first
        event must then be `created`.

        `expected`: the revision that the branch's head must have.
        `key`: a repeated append with the same key and events changes nothing.
        """
        if expected is not None:
            expected = events_pb2.ExpectedRevision(revision=expected)
        request = events_pb2.AppendRequest(
            conversation_id=conversation,
            branch=branch,
            events=events,
            expected=expected,
            idempotency_key=key,
        )
        return self.events.Append(request, metadata=self.metadata, timeout=30)

    def read(self, conversation, branch="", **where):
        """The history of a branch, oldest first."""
        source = events_pb2.BranchSource(conversation_id=conversation, branch=branch)
        request = events_pb2.ReadRequest(branch=source, **where)
        for batch in self.events.Read(request, metadata=self.metadata):
            yield from batch.events

    def subscribe(self, conversation, branch="", after=0):
        """Events after a revision; then `caught_up`; then new events."""
        source = events_pb2.BranchSource(conversation_id=conversation, branch=branch)
        request = events_pb2.SubscribeRequest(branch=source, after_revision=after)
        return self.events.Subscribe(request, metadata=self.metadata)

    def fork(self, conversation, at, name, branch=""):
        """A new branch that shares everything up to revision `at`."""
        request = conversation_pb2.ForkRequest(
            conversation_id=conversation, branch=branch, at_revision=at, name=name
        )
        return self.conversations.Fork(request, metadata=self.metadata, timeout=30)

    def build(self, conversation, provider, branch="", model="", policy=None, at_least=None):
        """Builds the next request: (the body to send, its explanation).

        `provider`: "openai-chat", "openai-responses", "anthropic", "gemini" or "neutral".
        `policy`: for example {"budget_tokens": 16000}, merged over the conversation's policy.
        """
        name = provider.upper().replace("-", "_")
        request = context_pb2.BuildRequest(
            conversation_id=conversation,
            branch=branch,
            provider=context_pb2.Provider.Value(f"PROVIDER_{name}"),
            model=model,
            policy=json.dumps(policy or {}).encode(),
            at_least=at_least,
        )
        built = self.contexts.Build(request, metadata=self.metadata, timeout=30)
        return json.loads(built.request), built.explanation

    def search(self, query, at_least=None, limit=10, **filters):
        """Hits, best first. `at_least`: wait until this position is indexed."""
        request = search_pb2.SearchRequest(
            query=query, limit=limit, at_least=at_least, **filters
        )
        return self.index.Search(request, metadata=self.metadata, timeout=30).hits

    def pending(self, conversation=""):
        """Calls that wait for a decision."""
        request = tool_pb2.PendingRequest(conversation_id=conversation)
        return self.tools.Pending(request, metadata=self.metadata, timeout=30).calls

    def wait_for_decision(self, conversation, call_id, seconds):
        """Returns when the call is decided, or after the timeout."""
        request = tool_pb2.WaitForDecisionRequest(
            conversation_id=conversation, call_id=call_id, timeout_ms=int(seconds * 1000)
        )
        return self.tools.WaitForDecision(
            request, metadata=self.metadata, timeout=seconds + 10
        )

    def close(self):
        self.channel.close()
