"""Tests the check itself. Good bodies must pass. The same bodies, each broken in one
nested place, must fail.

`prove()` raises AssertionError for a body that the check judges wrongly.
"""

import copy
import warnings

from . import rules, typed

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}

GOOD = {
    "openai-chat": {
        "model": "gpt-5",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Read both."}]},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": f"call_{one}",
                        "type": "function",
                        "function": {"name": "read", "arguments": '{"path": "a"}'},
                    }
                    for one in "ab"
                ],
            },
            {"role": "tool", "tool_call_id": "call_b", "content": "B"},
            {"role": "tool", "tool_call_id": "call_a", "content": "A"},
            {"role": "assistant", "content": "Both read."},
        ],
        "tools": [
            {"type": "function", "function": {"name": "read", "parameters": SCHEMA}},
        ],
    },
    "openai-responses": {
        "model": "gpt-5",
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Read both."}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "xyz"},
            {"type": "function_call", "call_id": "call_a", "name": "read", "arguments": "{}"},
            {"type": "function_call", "call_id": "call_b", "name": "read", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_b", "output": "B"},
            {"type": "function_call_output", "call_id": "call_a", "output": "A"},
            {"role": "assistant", "content": "Both read."},
        ],
        "tools": [{"type": "function", "name": "read", "parameters": SCHEMA, "strict": False}],
    },
    "anthropic": {
        "model": "claude-sonnet-4-5",
        "max_tokens": 1024,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Read both."}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "So.", "signature": "c2ln"},
                    {"type": "tool_use", "id": "toolu_a", "name": "read", "input": {"path": "a"}},
                    {"type": "tool_use", "id": "toolu_b", "name": "read", "input": {"path": "b"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_b", "content": "B"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_a",
                        "content": [{"type": "text", "text": "A"}],
                    },
                    {"type": "text", "text": "Go on."},
                ],
            },
            {"role": "assistant", "content": [{"type": "text", "text": "Both read."}]},
        ],
        "tools": [{"name": "read", "description": "Reads.", "input_schema": SCHEMA}],
    },
    "gemini": {
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "contents": [
            {"role": "user", "parts": [{"text": "Read both."}]},
            {
                "role": "model",
                "parts": [
                    {
                        "functionCall": {"name": "read", "args": {"path": "a"}},
                        "thoughtSignature": "c2ln",
                    },
                    {"functionCall": {"name": "look", "args": {"path": "b"}}},
                ],
            },
            {
                "role": "user",
                "parts": [
                    {"functionResponse": {"name": "read", "response": {"output": "A"}}},
                    {"functionResponse": {"name": "look", "response": {"output": "B"}}},
                ],
            },
            {"role": "model", "parts": [{"text": "Both read."}]},
        ],
        "tools": [{"functionDeclarations": [{"name": "read", "parametersJsonSchema": SCHEMA}]}],
        "generationConfig": {"temperature": 0.2, "maxOutputTokens": 1024},
    },
}

GONE = object()

# Values to put at a wrong place.
REASONING = {"type": "reasoning", "id": "rs_2", "summary": []}
THINKING = {"type": "thinking", "thinking": "So.", "signature": "c2ln"}
GONE_ON = {"role": "user", "content": "And?"}
CALLS = {"role": "model", "parts": [{"functionCall": {"name": "read", "args": {}}}]}

CALL = "messages.2.tool_calls.1"
USE = "messages.1.content.1"
RESULT = "messages.2.content.1"
RESPONSE = "contents.2.parts.1.functionResponse"

# The part of the check that must find it, the provider, the path, the value at that path.
BROKEN = [
    ("types", "openai-chat", "messages.1.role", "human"),
    ("types", "openai-chat", f"{CALL}.function.arguments", {"path": "a"}),
    ("types", "openai-chat", f"{CALL}.function.name", GONE),
    ("types", "openai-chat", f"{CALL}.type", "tool"),
    ("types", "openai-chat", f"{CALL}.extra", 1),
    ("types", "openai-chat", "messages.3.tool_call_id", GONE),
    ("types", "openai-chat", "messages.3.tool_call_id", 7),
    ("types", "openai-chat", "messages.3.is_error", True),
    ("types", "openai-chat", "messages.1.content.0.type", "input_text"),
    ("types", "openai-chat", "messages.1.content.0.text", GONE),
    ("types", "openai-chat", "tools.0.function.name", GONE),
    ("types", "openai-chat", "tools.0.function.input_schema", SCHEMA),
    ("types", "openai-chat", "systemInstruction", "Be brief."),
    ("types", "openai-chat", "temperature", "0.2"),
    ("rules", "openai-chat", "model", ""),
    ("rules", "openai-chat", "messages.3", GONE),
    ("rules", "openai-chat", "messages.2", GONE),
    ("rules", "openai-chat", "messages.3.tool_call_id", "call_a"),
    ("rules", "openai-chat", f"{CALL}.id", "call_a"),
    ("rules", "openai-chat", f"{CALL}.function.arguments", "{path: a}"),
    ("rules", "openai-chat", f"{CALL}.function.name", "read file"),
    ("rules", "openai-chat", "messages.5.content", None),
    ("rules", "openai-chat", "messages.3", {"role": "user", "content": "Wait."}),
    ("rules", "openai-chat", f"{CALL}.id", "x" * 41),
    ("rules", "openai-chat", "messages.2.tool_calls", []),
    ("rules", "openai-chat", "messages.1.content", []),
    ("rules", "openai-chat", "messages", []),
    ("rules", "openai-chat", "tools", []),
    ("rules", "openai-chat", "tools.0.function.name", "read a file"),
    ("rules", "openai-chat", "tools.0.function.parameters", {"type": "string"}),
    ("rules", "openai-chat", "tools.1", {"type": "function", "function": {"name": "read"}}),
    ("types", "openai-responses", "input.2.arguments", {"path": "a"}),
    ("types", "openai-responses", "input.2.call_id", GONE),
    ("types", "openai-responses", "input.2.type", "tool_call"),
    ("types", "openai-responses", "input.0.role", "human"),
    ("types", "openai-responses", "input.0.content.0.type", "text"),
    ("types", "openai-responses", "input.0.content.0.text", 7),
    ("types", "openai-responses", "input.1.summary", "So."),
    ("types", "openai-responses", "input.5.output", {"text": "A"}),
    ("types", "openai-responses", "input.5.is_error", True),
    ("types", "openai-responses", "tools.0.function", {"name": "read"}),
    ("rules", "openai-responses", "input.5", GONE),
    ("rules", "openai-responses", "input.2", GONE),
    ("rules", "openai-responses", "input.5.call_id", GONE),
    ("rules", "openai-responses", "input.5.call_id", "call_b"),
    ("rules", "openai-responses", "input.2", {"role": "user", "content": "Wait."}),
    ("rules", "openai-responses", "input.3.call_id", "call_a"),
    ("rules", "openai-responses", "input.3.id", "rs_1"),
    ("rules", "openai-responses", "input.3.id", "call_a"),
    ("rules", "openai-responses", "input.3.arguments", "{path: a}"),
    ("rules", "openai-responses", "input.3.name", "read file"),
    ("rules", "openai-responses", "input.7", REASONING),
    ("rules", "openai-responses", "input.4", REASONING),
    ("rules", "openai-responses", "input.0.content", []),
    ("rules", "openai-responses", "input", []),
    ("types", "anthropic", f"{USE}.input", '{"path": "a"}'),
    ("types", "anthropic", f"{USE}.id", GONE),
    ("types", "anthropic", f"{USE}.arguments", "{}"),
    ("types", "anthropic", "messages.0.content.0.type", "input_text"),
    ("types", "anthropic", "messages.0.role", "tool"),
    ("types", "anthropic", "messages.1.content.0.signature", GONE),
    ("types", "anthropic", f"{RESULT}.tool_use_id", GONE),
    ("types", "anthropic", f"{RESULT}.content.0.text", GONE),
    ("types", "anthropic", f"{RESULT}.content.0.type", "output_text"),
    ("types", "anthropic", "system.0.cache_control.type", "forever"),
    ("types", "anthropic", "tools.0.input_schema", GONE),
    ("types", "anthropic", "tools.0.parameters", SCHEMA),
    ("types", "anthropic", "max_tokens", GONE),
    ("rules", "anthropic", RESULT, GONE),
    ("rules", "anthropic", f"{RESULT}.tool_use_id", "toolu_c"),
    ("rules", "anthropic", "messages.2.content.0", {"type": "text", "text": "First."}),
    ("rules", "anthropic", f"{USE}.id", "toolu_b"),
    ("rules", "anthropic", f"{USE}.id", "call a|b"),
    ("rules", "anthropic", "messages.0.content.0.text", " "),
    ("rules", "anthropic", "messages.0.role", "assistant"),
    ("rules", "anthropic", "messages.0.content", []),
    ("rules", "anthropic", "messages.3.content.0.text", "Both read. "),
    ("rules", "anthropic", "messages.3.content.0", THINKING),
    ("rules", "anthropic", "messages.0.content.1", THINKING),
    ("rules", "anthropic", "messages.1.content.0.signature", ""),
    ("rules", "anthropic", f"{USE}.name", "read file"),
    ("rules", "anthropic", f"{RESULT}.content.0.text", ""),
    ("rules", "anthropic", "messages.1.role", "user"),
    ("rules", "anthropic", "messages.3", GONE_ON),
    ("rules", "anthropic", "system.0.text", "\n"),
    ("rules", "anthropic", "tools.0.input_schema.type", "string"),
    ("rules", "anthropic", "tools.0.name", "read file"),
    ("rules", "anthropic", "max_tokens", 0),
    ("rules", "anthropic", "temperature", 1.5),
    ("rules", "anthropic", "system", [GOOD["anthropic"]["system"][0]] * 5),
    ("types", "gemini", f"{RESPONSE}.response", "B"),
    ("types", "gemini", "contents.1.parts.0.functionCall.args", '{"path": "a"}'),
    ("types", "gemini", "contents.1.parts.0.functionCall.arguments", {"path": "a"}),
    ("types", "gemini", "contents.1.parts.0.thoughtSignature", 7),
    ("types", "gemini", "contents.0.parts.0.type", "text"),
    ("types", "gemini", "contents.0.content", "Read both."),
    ("types", "gemini", "messages", []),
    ("types", "gemini", "tools.0.functionDeclarations.0.input_schema", SCHEMA),
    ("types", "gemini", "generationConfig.max_tokens", 5),
    ("types", "gemini", "systemInstruction.parts.0.text", 7),
    ("rules", "gemini", "contents.0.role", "assistant"),
    ("rules", "gemini", "contents.2.parts.1", GONE),
    ("rules", "gemini", f"{RESPONSE}.name", "read"),
    ("rules", "gemini", "contents.2.parts.2", {"text": "Go on."}),
    ("rules", "gemini", "contents.2", GONE),
    ("rules", "gemini", "contents.0.parts.0.functionCall", {"name": "read"}),
    ("rules", "gemini", "contents.3.parts", []),
    ("rules", "gemini", "generationConfig.top_p", 0.5),
    ("rules", "gemini", "contents.0.role", "model"),
    ("rules", "gemini", "contents.1.role", "user"),
    ("rules", "gemini", "contents.4", CALLS),
    ("rules", "gemini", "contents.1.parts.1.functionCall.id", "1"),
    ("rules", "gemini", "contents.1.parts.1.functionCall.name", "1st"),
    ("rules", "gemini", f"{RESPONSE}.response", GONE),
    ("rules", "gemini", "contents.0.parts.0.text", " "),
    ("rules", "gemini", "systemInstruction.parts.0.text", ""),
    ("rules", "gemini", "tools.0.functionDeclarations.0.name", "1st"),
]


def prove():
    """Returns the number of broken bodies, all of which the check found."""
    for provider, body in GOOD.items():
        found = [*typed.errors(provider, body), *rules.broken(provider, body)]
        assert not found, f"a good body for {provider} is refused: {found}"
        assert rules.system_prompt(provider, body), f"no system prompt is seen: {provider}"
    for who, provider, path, value in BROKEN:
        body = changed(GOOD[provider], path.split("."), value)
        found = {"types": typed.errors, "rules": rules.broken}[who](provider, body)
        assert found, f"not found by the {who}: {provider} with {path} = {value!r}"
    prove_that_laziness_hides()
    return len(BROKEN)


def prove_that_laziness_hides():
    """Shows why `typed` builds its own validator: pydantic's accepts a broken call."""
    body = changed(GOOD["openai-chat"], f"{CALL}.function.arguments".split("."), {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        typed.lazy_adapter("openai-chat").validate_python(body)
    assert typed.errors("openai-chat", body)


def changed(body, path, value):
    """A copy of a body with another value at a place, or without it."""
    body = copy.deepcopy(body)
    at = body
    for step in path[:-1]:
        at = at[int(step) if isinstance(at, list) else step]
    last = int(path[-1]) if isinstance(at, list) else path[-1]
    if value is GONE:
        del at[last]
    elif isinstance(at, list) and last == len(at):
        at.append(value)
    else:
        at[last] = value
    return body
