"""Makes events for `conv.append([...])`.

    >>> from treering import new
    >>> done = conv.append([
    ...     new.user("Where is the port set?"),
    ...     new.assistant("I look for it."),
    ...     new.tool_call("call_1", "grep", {"pattern": "port"}),
    ...     new.tool_result("call_1", "src/config.py:12: PORT = 7171"),
    ... ])
    >>> done.revision - done.revisions[0]
    3

`Conversation` has a method for most of these; use the functions where several events belong
together. Each returns a `NewEvent`, which you can change before it is appended.
"""

from __future__ import annotations

import mimetypes
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from treering._times import Time, timestamp
from treering._words import (
    CancelReasonName,
    CompactionTriggerName,
    DecisionName,
    RoleName,
    json_bytes,
    json_text,
    json_texts,
    number,
    result_text,
)
from treering._words import text as checked
from treering.v1 import event_pb2 as pb

Part = str | pb.ContentPart
"""Text, or a part from `image`, `file`, `audio`, `reasoning`, `refusal` or `json`."""

Output = Part | Mapping[str, Any] | list[Any]
"""A part of a result; dicts and lists are recorded as JSON text."""

NewEvent = pb.NewEvent


# ---- parts of messages and results ----


def _media(source: bytes | str | Path, media_type: str, name: str, detail: str = "") -> pb.Media:
    if isinstance(source, Path):
        media_type = media_type or mimetypes.guess_type(source.name)[0] or ""
        return pb.Media(
            media_type=media_type, data=source.read_bytes(), name=name or source.name, detail=detail
        )
    if isinstance(source, bytes):
        return pb.Media(media_type=media_type, data=source, name=name, detail=detail)
    return pb.Media(media_type=media_type, uri=source, name=name, detail=detail)


def image(
    source: bytes | str | Path, media_type: str = "", *, name: str = "", detail: str = ""
) -> pb.ContentPart:
    """An image: bytes, the path of a file, or a URL."""
    return pb.ContentPart(image=_media(source, media_type, name, detail))


def file(source: bytes | str | Path, media_type: str = "", *, name: str = "") -> pb.ContentPart:
    """A file: bytes, its path, or a URL."""
    return pb.ContentPart(file=_media(source, media_type, name))


def audio(source: bytes | str | Path, media_type: str = "", *, name: str = "") -> pb.ContentPart:
    """Audio: bytes, the path of a file, or a URL."""
    return pb.ContentPart(audio=_media(source, media_type, name))


def reasoning(
    text: str,
    *,
    signature: bytes | str = b"",
    redacted: bool = False,
    provider: str = "",
    model: str = "",
    id: str = "",
) -> pb.ContentPart:
    """Reasoning of a model. Requests send it only to the same provider and model family."""
    return pb.ContentPart(
        reasoning=pb.Reasoning(
            text=text and checked(text, "the reasoning"),
            signature=signature.encode() if isinstance(signature, str) else signature,
            redacted=redacted,
            provider=provider,
            model=model,
            id=id,
        )
    )


def refusal(text: str) -> pb.ContentPart:
    """A refusal of a model."""
    return pb.ContentPart(refusal=checked(text, "the refusal"))


def json(value: Any) -> pb.ContentPart:
    """A JSON part."""
    return pb.ContentPart(json=json_text(value))


def parts(content: Iterable[Part]) -> list[pb.ContentPart]:
    """Converts texts and parts to parts."""
    return [_part(part) for part in content]


def outputs(content: Iterable[Output]) -> list[pb.ContentPart]:
    """Converts what a tool returned to parts: dicts and lists become JSON text."""
    return parts(
        result_text(each) if isinstance(each, (Mapping, list)) else each for each in content
    )


def _part(part: Part) -> pb.ContentPart:
    if isinstance(part, str):
        return pb.ContentPart(text=checked(part, "the text"))
    if isinstance(part, pb.ContentPart):
        return part
    how = "decode them to text, or " if isinstance(part, bytes) else ""
    raise TypeError(
        f"a part of the content is {type(part).__name__}: {how}use str, or the results of "
        "new.image, new.file, new.json and so on"
    )


def rest(
    fields: Mapping[str, Any], *, origin: str, provider: str = "", model: str = ""
) -> pb.RawMessage:
    """The other fields of a provider's message, for `raw`.

    >>> kept = new.rest({"annotations": [], "phase": "final"}, origin="openai-chat")
    >>> done = conv.append([new.assistant("Found it.", raw=kept)])

    `origin` is the format of the message; an export in that format contains these fields again.
    """
    return pb.RawMessage(
        origin=origin,
        provider=provider,
        model=model,
        encoding=pb.RAW_ENCODING_REST,
        data=json_bytes(dict(fields), "fields"),
    )


def usage(
    *,
    input: int = 0,
    input_with_cached: int = 0,
    output: int = 0,
    cache_read: int = 0,
    cache_creation: int = 0,
    reasoning: int = 0,
    model: str = "",
) -> pb.Usage:
    """Token usage as the provider reported it. Anthropic reports input without cached tokens
    (`input`), OpenAI and Gemini report it with them (`input_with_cached`). `output` includes
    reasoning."""
    if input_with_cached:
        input = max(0, input_with_cached - cache_read - cache_creation)
    return pb.Usage(
        input_tokens=input,
        output_tokens=output,
        cache_read_input_tokens=cache_read,
        cache_creation_input_tokens=cache_creation,
        reasoning_output_tokens=reasoning,
        model=model,
    )


# ---- messages ----


def message(
    role: RoleName,
    *content: Part,
    author: str = "",
    message_id: str = "",
    finish_reason: str = "",
    usage: pb.Usage | None = None,
    raw: pb.RawMessage | None = None,
) -> NewEvent:
    """A message."""
    return NewEvent(
        message_appended=pb.MessageAppended(
            role=number(pb.Role, "ROLE", role),
            parts=parts(content),
            author=author,
            message_id=message_id,
            finish_reason=finish_reason,
            usage=usage,
            raw=raw,
        )
    )


def user(*content: Part, author: str = "") -> NewEvent:
    """A user message."""
    return message("user", *content, author=author)


def assistant(
    *content: Part,
    author: str = "",
    message_id: str = "",
    finish_reason: str = "",
    usage: pb.Usage | None = None,
    raw: pb.RawMessage | None = None,
) -> NewEvent:
    """An assistant message."""
    return message(
        "assistant",
        *content,
        author=author,
        message_id=message_id,
        finish_reason=finish_reason,
        usage=usage,
        raw=raw,
    )


def system(content: str, *, id: str = "") -> NewEvent:
    """The system prompt from here on."""
    return NewEvent(
        system_prompt_set=pb.SystemPromptSet(id=id, content=checked(content, "the prompt"))
    )


def user_prompt(content: str, *, id: str = "") -> NewEvent:
    """A prompt that is the first user message from here on."""
    return NewEvent(user_prompt_set=pb.UserPromptSet(id=id, content=checked(content, "the prompt")))


# ---- tool calls ----


def tool(
    name: str,
    description: str = "",
    input_schema: Mapping[str, Any] | None = None,
    *,
    needs_approval: bool = False,
    guidance: str = "",
    discoverable: bool = False,
    source: str = "",
    strict: bool | None = None,
) -> pb.ToolDefinition:
    """A tool definition for `tools`. `strict` applies to requests for OpenAI."""
    return pb.ToolDefinition(
        name=name,
        description=description,
        input_schema=json_bytes(
            {"type": "object"} if input_schema is None else input_schema, "input_schema"
        ),
        approval=_requirement(needs_approval),
        guidance=guidance,
        discoverable=discoverable,
        source=source,
        strict=strict,
    )


def tools(definitions: Iterable[pb.ToolDefinition]) -> NewEvent:
    """The available tools from here on."""
    return NewEvent(tools_defined=pb.ToolsDefined(tools=definitions))


def tools_discovered(names: Iterable[str]) -> NewEvent:
    """Discovered tools, which are available from here on."""
    return NewEvent(tools_discovered=pb.ToolsDiscovered(names=names))


def guidance_given(guidance: Mapping[str, str]) -> NewEvent:
    """Guidance on tools: a text for each tool."""
    items = [pb.Guidance(tool=tool, text=text) for tool, text in guidance.items()]
    return NewEvent(guidance_given=pb.GuidanceGiven(guidance=items))


def _requirement(needs_approval: bool) -> pb.ApprovalRequirement.ValueType:
    if needs_approval:
        return pb.APPROVAL_REQUIREMENT_PENDING
    return pb.APPROVAL_REQUIREMENT_NOT_REQUIRED


def tool_call(
    call_id: str,
    tool: str,
    arguments: Any,
    *,
    needs_approval: bool = False,
    message_revision: int = 0,
    item_id: str = "",
    raw: pb.RawMessage | None = None,
) -> NewEvent:
    """A tool call. Arguments of type `bytes` or `str` are stored unchanged, even if they are not
    JSON. `item_id` is the provider's item id (OpenAI Responses: `fc_…`)."""
    return NewEvent(
        tool_call_requested=pb.ToolCallRequested(
            call_id=checked(call_id, "the call's id"),
            tool=checked(tool, "the tool"),
            arguments=json_bytes(arguments, "arguments", as_is=True),
            approval=_requirement(needs_approval),
            message_revision=message_revision,
            item_id=item_id,
            raw=raw,
        )
    )


def tool_started(call_id: str, *, executor: str = "") -> NewEvent:
    """The start of a call."""
    return NewEvent(tool_call_started=pb.ToolCallStarted(call_id=call_id, executor=executor))


def tool_result(
    call_id: str,
    *content: Output,
    success: bool = True,
    error: str = "",
    milliseconds: int | None = None,
    structured: Any = None,
    raw: pb.RawMessage | None = None,
) -> NewEvent:
    """A tool result. Dicts and lists are recorded as JSON text."""
    return NewEvent(
        tool_result_recorded=pb.ToolResultRecorded(
            call_id=checked(call_id, "the call's id"),
            success=success,
            error_message=error and checked(error, "the error"),
            execution_time_ms=milliseconds,
            parts=outputs(content),
            structured=b"" if structured is None else json_bytes(structured, "structured"),
            raw=raw,
        )
    )


def tool_cancelled(
    call_id: str, reason: CancelReasonName = "interrupted", detail: str = ""
) -> NewEvent:
    """A cancellation: the call ended without a result."""
    return NewEvent(
        tool_call_cancelled=pb.ToolCallCancelled(
            call_id=call_id,
            reason=number(pb.CancelReason, "CANCEL_REASON", reason),
            detail=detail,
        )
    )


def tool_snapshot(call_id: str, summary: str, *, request_revision: int = 0) -> NewEvent:
    """A result digest: a short form of a finished call."""
    return NewEvent(
        tool_snapshot_recorded=pb.ToolSnapshotRecorded(
            call_id=call_id, request_revision=request_revision, summary=summary
        )
    )


def decision(
    call_id: str,
    decision: DecisionName,
    arguments_hash: bytes,
    *,
    by: str = "",
    reason: str = "",
) -> NewEvent:
    """A decision on a call, for exactly the arguments with this hash."""
    return NewEvent(
        approval_decided=pb.ApprovalDecided(
            call_id=call_id,
            decision=number(pb.Decision, "DECISION", decision),
            arguments_hash=arguments_hash,
            decided_by=by,
            reason=reason,
        )
    )


# ---- conversations and branches ----


def config(
    model: str = "", *, mode: str = "", parameters: Mapping[str, Any] | None = None
) -> pb.Config:
    """Model settings."""
    return pb.Config(model_id=model, mode=mode, parameters=json_texts(parameters, "parameters"))


def created(
    title: str = "",
    *,
    config: pb.Config | None = None,
    labels: Mapping[str, str] | None = None,
    policies: Mapping[str, Any] | None = None,
    source: str = "",
    source_id: str = "",
    source_meta: Any = None,
    parent: pb.ParentRef | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> NewEvent:
    """The first event of a conversation."""
    return NewEvent(
        conversation_created=pb.ConversationCreated(
            title=title and checked(title, "the title"),
            config=config,
            labels=labels or {},
            policies=json_texts(policies, "policies"),
            source=source,
            source_id=source_id,
            source_meta=b"" if source_meta is None else json_bytes(source_meta, "source_meta"),
            parent=parent,
            metadata=json_texts(metadata, "metadata"),
        )
    )


def config_changed(config: pb.Config) -> NewEvent:
    """The model settings from here on."""
    return NewEvent(config_changed=pb.ConfigChanged(config=config))


def conversation_changed(
    *,
    title: str | None = None,
    labels: Mapping[str, str | None] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> NewEvent:
    """Changes of title, labels and metadata; other values stay.

    A label of None is removed, and so is metadata of `...` (None is JSON's null there).
    """
    labels, metadata = labels or {}, metadata or {}
    return NewEvent(
        conversation_changed=pb.ConversationChanged(
            title=title,
            set_labels={name: value for name, value in labels.items() if value is not None},
            remove_labels=[name for name, value in labels.items() if value is None],
            set_metadata=json_texts(
                {name: value for name, value in metadata.items() if value is not ...}, "metadata"
            ),
            remove_metadata=[name for name, value in metadata.items() if value is ...],
        )
    )


def branch_activated() -> NewEvent:
    """Makes the branch the active branch."""
    return NewEvent(branch_activated=pb.BranchActivated())


def branch_renamed(name: str) -> NewEvent:
    """The branch's new name."""
    return NewEvent(branch_renamed=pb.BranchRenamed(name=name))


def branch_archived(reason: str = "") -> NewEvent:
    """Archives the branch: it accepts no appends."""
    return NewEvent(branch_archived=pb.BranchArchived(reason=reason))


def sealed(reason: str = "", summary: str = "") -> NewEvent:
    """Seals the conversation: it accepts no appends."""
    return NewEvent(conversation_sealed=pb.ConversationSealed(reason=reason, summary=summary))


# ---- context, summaries, annotations ----


def context_set(key: str, value: Any, *, provider: str = "") -> NewEvent:
    """Sets a key of the active context."""
    said = json_bytes(value, f"the value of {key!r}")
    return NewEvent(context_set=pb.ContextSet(key=key, value=said, provider=provider))


def context_removed(key: str) -> NewEvent:
    """Removes a key of the active context."""
    return NewEvent(context_removed=pb.ContextRemoved(key=key))


def entities(noted: Sequence[tuple[str, str, str]]) -> NewEvent:
    """Entities that the conversation is about: (id, kind, name) each."""
    items = [pb.Entity(id=id, kind=kind, name=name) for id, kind, name in noted]
    return NewEvent(entities_noted=pb.EntitiesNoted(entities=items))


def summary(content: str, *, from_revision: int = 0, to_revision: int = 0) -> NewEvent:
    """A summary of the dialogue, which is part of the next request."""
    return NewEvent(
        summary_recorded=pb.SummaryRecorded(
            content=content, from_revision=from_revision, to_revision=to_revision
        )
    )


def compacted(
    summary: str, cut_revision: int, *, trigger: CompactionTriggerName = "manual"
) -> NewEvent:
    """A compaction: a summary that replaces everything up to a revision. See `conv.compact`."""
    return NewEvent(
        compacted=pb.Compacted(
            summary=summary,
            cut_revision=cut_revision,
            trigger=number(pb.CompactionTrigger, "COMPACTION_TRIGGER", trigger),
        )
    )


def annotation(
    target_revision: int = 0,
    *,
    whole_turn: bool = False,
    score: float | None = None,
    label: str = "",
    comment: str = "",
) -> NewEvent:
    """An annotation of an event, a turn, or (without a revision) the branch."""
    return NewEvent(
        annotation_added=pb.AnnotationAdded(
            target_revision=target_revision,
            whole_turn=whole_turn,
            score=score,
            label=label,
            comment=comment,
        )
    )


def custom(
    type_name: str,
    data: Any,
    *,
    content_type: str = "",
    text: str = "",
    delta_of: str = "",
    key: str = "",
    attributes: Mapping[str, str] | None = None,
) -> NewEvent:
    """A custom event. `bytes` are stored unchanged, other values as JSON.

    Search finds it by its `text`. See `found_by` for `key` and `attributes`. `delta_of` is the key
    of a similar event, for example the previous state: the store then keeps only the difference,
    and reads return the whole data. For the previous event of the same key: `custom("state", state,
    key="state", delta_of="state")`.
    """
    if isinstance(data, bytes):
        content = data
        content_type = content_type or "application/octet-stream"
    else:
        content = json_bytes(data, "data")
        content_type = content_type or "application/json"
    said = pb.Custom(
        type_name=type_name,
        content_type=content_type,
        data=content,
        text=text and checked(text, "the text"),
        delta_of=delta_of,
    )
    return found_by(NewEvent(custom=said), key, attributes)


def found_by(
    event: NewEvent, key: str = "", attributes: Mapping[str, str] | None = None
) -> NewEvent:
    """Returns the event with a key and attributes, by which you can find it. Erasing the event
    removes both.

    >>> done = conv.append([new.found_by(new.user("Step one."), "step/1", {"by": "planner"})])
    >>> conv.latest(key="step/1").text
    'Step one.'
    """
    event.key = key or event.key
    event.attributes.update(attributes or {})
    return event


def with_id(event: NewEvent, id: str) -> NewEvent:
    """Returns the event with an id of your choice: a UUID of version 1 to 7, unique in the
    namespace.

    An append with a known id is refused (`EventIdTaken`). With `skip_known=True` the event is
    skipped if its content is the same, and otherwise refused (`EventIdConflict`).

    >>> import uuid
    >>> mine = str(uuid.uuid4())
    >>> first = conv.append([new.with_id(new.user("Once."), mine)])
    >>> again = conv.append(
    ...     [new.with_id(new.user("Once."), mine), new.user("And on.")], skip_known=True
    ... )
    >>> again.known, again.revisions[0] == first.revision, again.event_ids[0] == mine
    ((0,), True, True)
    """
    event.id = id
    return event


def once(event: NewEvent, idempotency_key: str) -> NewEvent:
    """Returns the event with its own idempotency key. If it is appended again, in any batch, it is
    skipped and listed in `known` of the receipt. With other content the batch is refused
    (`IdempotencyConflict`).

    >>> lines = ["one", "two", "three"]
    >>> feed = [new.once(new.user(text), f"line/{text}") for text in lines]
    >>> first = conv.append(feed[:2])
    >>> conv.append(feed).known
    (0, 1)
    """
    event.idempotency_key = idempotency_key
    return event


def happened(event: NewEvent, at: Time) -> NewEvent:
    """Returns the event with the time when it happened, instead of when it is appended.

    A datetime without a zone is local time.
    """
    if stamp := timestamp(at, "at"):
        event.occurred_at.CopyFrom(stamp)
    return event
