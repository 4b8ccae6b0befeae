"""Rules of Gemini generateContent."""

import re

from .shared import blank, named, tool_names

# A name must not begin with a digit.
NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}")


def broken(body):
    contents = body["contents"]
    if not contents:
        yield "contents", "there is no content"
    for at, content in enumerate(contents):
        yield from content_alone(content, f"contents.{at}")
    yield from batches(contents)
    if contents and contents[0].get("role") != "user":
        yield "contents.0", "the first content is not the user's"
    if blank("".join(part.get("text", "") for part in parts_of(body.get("systemInstruction")))):
        if "systemInstruction" in body:
            yield "systemInstruction", "a text without text"
    declared = [
        one for tool in body.get("tools", []) for one in tool.get("functionDeclarations", [])
    ]
    yield from tool_names((one.get("name") for one in declared), NAME, "tools")
    yield from no_snake_case(body)


def parts_of(content):
    return (content or {}).get("parts") or []


def content_alone(content, path):
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
            yield from named(NAME, function.get("name"), here)
        if "functionResponse" in part and "response" not in part["functionResponse"]:
            yield here, "a response without `response`"


def batches(contents):
    """Calls come right after a user content, and the next content answers each of them."""
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
    """Compares names in order, and ids where there are any."""
    ids = [(call.get("id"), answer.get("id")) for call, answer in zip(calls, answers)]
    return names(calls) == names(answers) and all(one == other for one, other in ids)


def names(functions):
    return [function.get("name") for function in functions]


# Members that hold callers' own JSON, where any key is allowed.
FOREIGN = ("args", "response", "parameters", "parametersJsonSchema", "responseSchema")


def no_snake_case(value, path=""):
    """REST bodies use camelCase. The package's models accept snake_case too, so this checks it."""
    if isinstance(value, list):
        for at, one in enumerate(value):
            yield from no_snake_case(one, f"{path}.{at}")
    if isinstance(value, dict):
        for key, one in value.items():
            if "_" in key:
                yield f"{path}.{key}", "a member in snake_case"
            if key not in FOREIGN:
                yield from no_snake_case(one, f"{path}.{key}")
