"""What no type can say about a request: who may follow whom, and what pairs.

`broken(provider, body)` gives (path, message) pairs, none when all rules hold.
Written from the providers' API references and error texts, on purpose without
a look at Treering's own checker: the two watch each other.
"""

import json
import re

# Names of functions and tools; Gemini's first character is no digit.
OPENAI_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
ANTHROPIC_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
GEMINI_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}")
ANTHROPIC_ID = re.compile(r"[a-zA-Z0-9_-]+")

# Characters that an id may have.
CHAT_ID_MAX = 40
RESPONSES_ID_MAX = 64

CACHE_BREAKPOINTS_MAX = 4
OPENAI_TOOLS_MAX = 128


def broken(provider, body):
    """The rules that a body of a provider breaks, as (path, message) pairs."""
    rules = {
        "openai-chat": openai_chat,
        "openai-responses": openai_responses,
        "anthropic": anthropic,
        "gemini": gemini,
    }
    found = list(rules[provider](body))
    if provider != "gemini" and blank(body["model"]):
        found.append(("model", "no model is named"))
    return found


def system_prompt(provider, body):
    """What stands where the provider wants the system prompt, or None."""
    if provider == "openai-chat":
        first = body["messages"][0]
        return first["content"] if first["role"] in ("system", "developer") else None
    members = {
        "openai-responses": "instructions",
        "anthropic": "system",
        "gemini": "systemInstruction",
    }
    return body.get(members[provider])


# ---- for more than one provider ----


def unique(values, path, what):
    seen = set()
    for value in values:
        if value in seen:
            yield path, f"{what} {value!r} comes twice"
        seen.add(value)


def named(pattern, name, path):
    if not pattern.fullmatch(name or ""):
        yield path, f"the name {name!r} does not match {pattern.pattern}"


def json_text(text, path):
    try:
        json.loads(text)
    except ValueError as error:
        yield path, f"the arguments are no JSON: {error}"


def blank(text):
    return not text.strip()


def tool_names(names, pattern, path):
    names = list(names)
    yield from unique(names, path, "the tool")
    for at, name in enumerate(names):
        yield from named(pattern, name, f"{path}.{at}")


def is_object_schema(schema, path):
    if schema.get("type") != "object":
        yield path, f"the schema's type is {schema.get('type')!r}, not 'object'"


# ---- OpenAI Chat Completions ----


def openai_chat(body):
    messages = body["messages"]
    if not messages:
        yield "messages", "there is no message"
    yield from chat_batches(messages)
    calls = [call for message in messages for call in message.get("tool_calls", [])]
    yield from unique((call["id"] for call in calls), "messages", "the call id")
    for at, message in enumerate(messages):
        if message["role"] == "assistant":
            yield from chat_assistant(message, f"messages.{at}")
        elif message.get("content") in (None, []):
            yield f"messages.{at}", f"a {message['role']} message says nothing"
    yield from openai_tools(body, [tool.get("function", {}) for tool in body.get("tools", [])])


def chat_batches(messages):
    """One tool message for each call id, before the next message of another role."""
    waiting, asked_at = [], None
    for at, message in enumerate(messages):
        path = f"messages.{at}"
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                yield path, f"answers {message['tool_call_id']!r}, which waits for no answer"
            else:
                waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            yield path, f"messages.{asked_at} still waits for {waiting}"
        waiting = [call["id"] for call in message.get("tool_calls", [])]
        asked_at = at
    if waiting:
        yield f"messages.{asked_at}", f"no answers to {waiting}"


def chat_assistant(message, path):
    calls = message.get("tool_calls")
    if calls == []:
        yield path, "`tool_calls` is an empty list"
    if not calls and not message.get("refusal") and message.get("content") in (None, []):
        yield path, "an assistant message neither says nor calls anything"
    for at, call in enumerate(calls or []):
        here = f"{path}.tool_calls.{at}"
        yield from named(OPENAI_NAME, call["function"]["name"], here)
        yield from json_text(call["function"]["arguments"], here)
        if not 1 <= len(call["id"]) <= CHAT_ID_MAX:
            yield here, f"the call id has {len(call['id'])} characters"


def openai_tools(body, functions):
    yield from tool_names((one.get("name") for one in functions), OPENAI_NAME, "tools")
    if body.get("tools") == []:
        yield "tools", "an empty list"
    if len(functions) > OPENAI_TOOLS_MAX:
        yield "tools", f"{len(functions)} tools; at most {OPENAI_TOOLS_MAX}"
    for at, function in enumerate(functions):
        yield from is_object_schema(function.get("parameters") or {"type": "object"}, f"tools.{at}")


# ---- OpenAI Responses ----


def openai_responses(body):
    items = body["input"]
    if not items:
        yield "input", "there is no item"
    if isinstance(items, str):
        return
    yield from responses_pairs(items)
    yield from responses_reasoning(items)
    calls = [item for item in items if item.get("type") == "function_call"]
    yield from unique((call["call_id"] for call in calls), "input", "the call id")
    ids = [item["id"] for item in items if item.get("id")]
    yield from unique(ids, "input", "the item id")
    for at, item in enumerate(items):
        yield from responses_item(item, f"input.{at}")
    yield from openai_tools(body, body.get("tools", []))


def responses_pairs(items):
    """Each call has one output after it, and each output its call before it."""
    called, answered = {}, set()
    for at, item in enumerate(items):
        kind, call_id = item.get("type"), item.get("call_id")
        if kind == "function_call":
            called[call_id] = at
        elif kind == "function_call_output":
            if call_id not in called:
                yield f"input.{at}", f"an output of {call_id!r}, which nobody called before"
            if call_id in answered:
                yield f"input.{at}", f"a second output of {call_id!r}"
            answered.add(call_id)
    for call_id, at in called.items():
        if call_id not in answered:
            yield f"input.{at}", f"the call {call_id!r} has no output"


def responses_reasoning(items):
    """A reasoning item stands before what it led to: a call or an answer."""
    for at, item in enumerate(items):
        if item.get("type") != "reasoning":
            continue
        after = items[at + 1] if at + 1 < len(items) else {}
        follows = after.get("type") in ("function_call", "reasoning", "custom_tool_call")
        if not follows and after.get("role") != "assistant":
            yield f"input.{at}", "a reasoning item without the item that it led to"


def responses_item(item, path):
    if item.get("type") == "function_call":
        yield from named(OPENAI_NAME, item["name"], path)
        yield from json_text(item["arguments"], path)
    if item.get("type") in ("function_call", "function_call_output"):
        if not 1 <= len(item.get("call_id") or "") <= RESPONSES_ID_MAX:
            yield path, f"the call id {item.get('call_id')!r} is missing or too long"
    if "role" in item and item.get("content") in (None, []):
        yield path, f"a {item['role']} message says nothing"
    prefixes = {"function_call": "fc", "reasoning": "rs", "message": "msg"}
    prefix = prefixes.get(item.get("type"))
    if prefix and item.get("id") and not item["id"].startswith(prefix):
        yield path, f"the id {item['id']!r} of a {item['type']} does not begin with {prefix!r}"


# ---- Anthropic Messages ----


def anthropic(body):
    messages = [
        {**message, "content": blocks_of(message["content"])} for message in body["messages"]
    ]
    yield from anthropic_roles(messages)
    yield from anthropic_batches(messages)
    blocks = [block for message in messages for block in message["content"]]
    calls = [block for block in blocks if block["type"] == "tool_use"]
    yield from unique((call["id"] for call in calls), "messages", "the call id")
    for at, message in enumerate(messages):
        yield from anthropic_message(message, f"messages.{at}", last=at == len(messages) - 1)
    yield from anthropic_head(body)
    count = cache_breakpoints(body)
    if count > CACHE_BREAKPOINTS_MAX:
        yield "", f"{count} cache_control; at most {CACHE_BREAKPOINTS_MAX}"


def blocks_of(content):
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def anthropic_roles(messages):
    roles = [message["role"] for message in messages]
    if roles[:1] != ["user"]:
        yield "messages.0", f"the first message is not the user's: {roles[:1]}"
    for at, (one, other) in enumerate(zip(roles, roles[1:]), 1):
        if one == other:
            yield f"messages.{at}", f"a second {other} message in a row"
        if other not in ("user", "assistant"):
            yield f"messages.{at}", f"no such role: {other!r}"


def anthropic_batches(messages):
    """All results of a batch lead the next user message, and stand nowhere else."""
    waiting = []
    for at, message in enumerate(messages):
        path = f"messages.{at}"
        kinds = [block["type"] for block in message["content"]]
        results = [b["tool_use_id"] for b in message["content"] if b["type"] == "tool_result"]
        if sorted(results) != sorted(waiting):
            yield path, f"the results are of {results}, asked for were {waiting}"
        if kinds[: len(results)] != ["tool_result"] * len(results):
            yield path, "something stands before a result"
        if results and message["role"] != "user":
            yield path, f"results in a message of the {message['role']}"
        waiting = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
        if waiting and message["role"] != "assistant":
            yield path, f"calls in a message of the {message['role']}"
    if waiting:
        yield f"messages.{len(messages) - 1}", f"no answers to {waiting}"


def anthropic_message(message, path, last):
    content = message["content"]
    if not content:
        yield path, "the message is empty"
        return
    for at, block in enumerate(content):
        yield from anthropic_block(block, message["role"], f"{path}.content.{at}")
    if message["role"] != "assistant":
        return
    if content[-1]["type"] in ("thinking", "redacted_thinking"):
        yield path, "the last block of an answer is its thinking"
    if last and content[-1]["type"] == "text" and content[-1]["text"] != content[-1]["text"].rstrip():
        yield path, "the final assistant message ends with white space"


def anthropic_block(block, role, path):
    if block["type"] == "text" and blank(block["text"]):
        yield path, "a text without text"
    if block["type"] in ("thinking", "redacted_thinking"):
        if role != "assistant":
            yield path, "thinking that is not the assistant's"
        if not (block.get("signature") or block.get("data")):
            yield path, "thinking without its signature"
        if "cache_control" in block:
            yield path, "cache_control on thinking"
    if block["type"] == "tool_use":
        yield from named(ANTHROPIC_NAME, block["name"], path)
        if not ANTHROPIC_ID.fullmatch(block["id"]):
            yield path, f"the id {block['id']!r} does not match {ANTHROPIC_ID.pattern}"
    if block["type"] == "tool_result" and not isinstance(block.get("content", ""), str):
        for at, inner in enumerate(block["content"]):
            yield from anthropic_block(inner, role, f"{path}.content.{at}")


def anthropic_head(body):
    for at, block in enumerate(blocks_of(body.get("system", []))):
        if blank(block["text"]):
            yield f"system.{at}", "a text without text"
    if body["max_tokens"] < 1:
        yield "max_tokens", f"{body['max_tokens']}; at least 1"
    if not 0 <= body.get("temperature", 0) <= 1:
        yield "temperature", f"{body['temperature']}; 0 to 1"
    tools = body.get("tools", [])
    yield from tool_names((tool["name"] for tool in tools), ANTHROPIC_NAME, "tools")
    for at, tool in enumerate(tools):
        yield from is_object_schema(tool["input_schema"], f"tools.{at}")


def cache_breakpoints(value):
    """How many there are, outside of what callers and models wrote."""
    if isinstance(value, list):
        return sum(map(cache_breakpoints, value))
    if not isinstance(value, dict):
        return 0
    inner = (v for key, v in value.items() if key not in ("input", "input_schema"))
    return ("cache_control" in value) + sum(map(cache_breakpoints, inner))


# ---- Gemini generateContent ----


def gemini(body):
    contents = body["contents"]
    if not contents:
        yield "contents", "there is no content"
    for at, content in enumerate(contents):
        yield from gemini_content(content, f"contents.{at}")
    yield from gemini_batches(contents)
    if contents and contents[0].get("role") != "user":
        yield "contents.0", "the first content is not the user's"
    if blank("".join(part.get("text", "") for part in parts_of(body.get("systemInstruction")))):
        if "systemInstruction" in body:
            yield "systemInstruction", "a text without text"
    declared = [
        one for tool in body.get("tools", []) for one in tool.get("functionDeclarations", [])
    ]
    yield from tool_names((one.get("name") for one in declared), GEMINI_NAME, "tools")
    yield from no_snake_case(body)


def parts_of(content):
    return (content or {}).get("parts") or []


def gemini_content(content, path):
    if content.get("role") not in ("user", "model"):
        yield path, f"no such role: {content.get('role')!r}"
    if not parts_of(content):
        yield path, "a content without parts"
    for at, part in enumerate(parts_of(content)):
        here = f"{path}.parts.{at}"
        data = [key for key in part if key not in ("thought", "thoughtSignature", "videoMetadata")]
        if len(data) != 1:
            yield here, f"a part must say one thing; this one has {data}"
        if data == ["text"] and blank(part["text"]) and "thoughtSignature" not in part:
            yield here, "a text without text"
        function = part.get("functionCall") or part.get("functionResponse")
        if function is not None:
            yield from named(GEMINI_NAME, function.get("name"), here)
        if "functionResponse" in part and "response" not in part["functionResponse"]:
            yield here, "a response without `response`"


def gemini_batches(contents):
    """A content with calls follows the user's, and the next one answers each."""
    waiting = []
    for at, content in enumerate(contents):
        path = f"contents.{at}"
        answers = [p["functionResponse"] for p in parts_of(content) if "functionResponse" in p]
        if len(answers) != len(waiting):
            yield path, f"{len(answers)} responses to {len(waiting)} calls"
        elif not same_calls(waiting, answers):
            yield path, f"the responses are of {names(answers)}, called were {names(waiting)}"
        if answers and (content["role"] != "user" or len(answers) != len(parts_of(content))):
            yield path, "responses share a content with something else"
        waiting = [p["functionCall"] for p in parts_of(content) if "functionCall" in p]
        if waiting and content["role"] != "model":
            yield path, f"calls in a content of the {content['role']}"
        if waiting and (at == 0 or contents[at - 1].get("role") != "user"):
            yield path, "calls must come right after the user's content"
    if waiting:
        yield f"contents.{len(contents) - 1}", f"no responses to {names(waiting)}"


def same_calls(calls, answers):
    """By name and order; where there are ids, by id."""
    ids = [(call.get("id"), answer.get("id")) for call, answer in zip(calls, answers)]
    return names(calls) == names(answers) and all(one == other for one, other in ids)


def names(functions):
    return [function.get("name") for function in functions]


# Where callers' own JSON begins: its keys are theirs.
FOREIGN = ("args", "response", "parameters", "parametersJsonSchema", "responseSchema")


def no_snake_case(value, path=""):
    """REST bodies are camelCase; the package's models would take both."""
    if isinstance(value, list):
        for at, one in enumerate(value):
            yield from no_snake_case(one, f"{path}.{at}")
    if isinstance(value, dict):
        for key, one in value.items():
            if "_" in key:
                yield f"{path}.{key}", "a member in snake_case"
            if key not in FOREIGN:
                yield from no_snake_case(one, f"{path}.{key}")
