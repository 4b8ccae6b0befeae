"""Checks request bodies against the types of the providers' own Python packages.

`errors(provider, body)` returns the type errors of a body as (path, message)
pairs, none if the body is valid.

The OpenAI and Anthropic packages describe requests as TypedDicts whose lists are
`Iterable[...]`. pydantic validates such a field only when it is iterated, so a
plain validation accepts a body that is broken one level down. This module changes
every lazy list to an eager one before it builds the validator: that validates the
whole body, and selects a union's member by its contents. It also refuses unknown
keys (see `strict`).
"""

import json
from functools import cache

from anthropic.types import message_create_params as anthropic_messages
from google.genai import types as google
from openai.types.chat import completion_create_params as openai_chat
from openai.types.responses import response_create_params as openai_responses
from pydantic import TypeAdapter, ValidationError
from pydantic_core import SchemaValidator

PROVIDERS = ("openai-chat", "openai-responses", "anthropic", "gemini")

# Models to name in requests, so that a body can be sent unchanged.
MODELS = {
    "openai-chat": "gpt-5",
    "openai-responses": "gpt-5",
    "anthropic": "claude-sonnet-4-5",
    "gemini": "gemini-2.5-pro",
}

# Bodies have no `stream` member, so these are the non-streaming types.
TYPED_DICTS = {
    "openai-chat": openai_chat.CompletionCreateParamsNonStreaming,
    "openai-responses": openai_responses.ResponseCreateParamsNonStreaming,
    "anthropic": anthropic_messages.MessageCreateParamsNonStreaming,
}

# Members of a `generateContent` body over REST. The package's own parameters are
# spread over a call's arguments, so each member has its own type.
GEMINI_MEMBERS = {
    "contents": list[google.Content],
    "systemInstruction": google.Content,
    "tools": list[google.Tool],
    "toolConfig": google.ToolConfig,
    "safetySettings": list[google.SafetySetting],
    "generationConfig": google.GenerationConfig,
    "cachedContent": str,
}


def errors(provider, body):
    """The type errors of a body, as (path, message) pairs."""
    if provider == "gemini":
        return gemini_errors(body)
    return told(strict_validator(provider), body)


@cache
def strict_validator(provider):
    schema = lazy_adapter(provider).core_schema
    listed = schema.get("definitions", [])
    classes = {one["ref"] for one in listed if one["type"] == "model"}
    return SchemaValidator(strict(schema, classes))


def lazy_adapter(provider):
    """pydantic's own validator, which does not check the items of lists."""
    return TypeAdapter(TYPED_DICTS[provider])


def strict(schema, classes):
    """The same schema, stricter, for plain JSON bodies.

    - Replaces lazy iterables by lists.
    - Forbids unknown keys, except where the package allows them.
    - Removes classes of *answers*, which the Anthropic package accepts in requests
      as a convenience, and which allow any unknown key. `classes` has the refs of
      those in the schema's definitions.
    """
    if isinstance(schema, (list, tuple)):
        return type(schema)(strict(one, classes) for one in schema)
    if not isinstance(schema, dict) or schema.get("type") == "model":
        return schema
    if schema.get("type") == "union":
        choices = [one for one in schema["choices"] if not is_answer(one, classes)]
        schema = {**schema, "choices": choices}
    made = {key: strict(value, classes) for key, value in schema.items()}
    if made.get("type") == "generator":
        made["type"] = "list"
    if made.get("type") == "typed-dict" and made.get("extra_behavior") == "ignore":
        made["extra_behavior"] = "forbid"
    return made


def is_answer(choice, classes):
    """True for a class, and for a union of classes only."""
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind == "union":
        return all(is_answer(one, classes) for one in choice["choices"])
    return kind == "model" or choice.get("schema_ref") in classes


@cache
def member_adapter(member):
    return TypeAdapter(GEMINI_MEMBERS[member])


def gemini_errors(body):
    found = []
    for member, value in body.items():
        if member == "model":
            continue  # part of the URL, allowed in the body
        if member not in GEMINI_MEMBERS:
            found.append((member, "the API has no such member"))
            continue
        inner = told(member_adapter(member), value)
        found += [(".".join(filter(None, (member, path))), what) for path, what in inner]
    return found or told(TypeAdapter(google.GenerateContentConfig), gemini_config(body))


def gemini_config(body):
    """The body's members that the package takes as `config`."""
    members = ("systemInstruction", "tools", "toolConfig", "safetySettings", "cachedContent")
    spread = {member: body[member] for member in members if member in body}
    return {**body.get("generationConfig", {}), **spread}


def told(validator, value):
    """The errors of a strict validation as JSON, reduced by `telling`."""
    try:
        validator.validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        listed = error.errors(include_url=False, include_input=False)
        return [(path_of(one["loc"]), one["msg"]) for one in telling(listed)]
    return []


def telling(listed):
    """Drops the errors of union members with another role or type than the value.

    A message of role `tool` that lacks an id has six errors: as a broken tool
    message, as no user message, as no assistant message and so on.
    """
    meant_otherwise = {
        one["loc"][:-1]
        for one in listed
        if one["type"] == "literal_error" and one["loc"][-1] in ("role", "type")
    }
    kept = [
        one for one in listed if not any(one["loc"][: len(loc)] == loc for loc in meant_otherwise)
    ]
    return kept or listed[:6]


def path_of(loc):
    """The path without the names of unions, which can be longer than a page."""
    return ".".join(step for step in map(str, loc) if not step.startswith(("list[", "union[")))
