"""Rules that both OpenAI APIs share."""

import re

from .shared import is_object_schema, tool_names

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")

TOOLS_MAX = 128


def tools(body, functions):
    yield from tool_names((one.get("name") for one in functions), NAME, "tools")
    if body.get("tools") == []:
        yield "tools", "an empty list"
    if len(functions) > TOOLS_MAX:
        yield "tools", f"{len(functions)} tools; at most {TOOLS_MAX}"
    for at, function in enumerate(functions):
        yield from is_object_schema(function.get("parameters") or {"type": "object"}, f"tools.{at}")
