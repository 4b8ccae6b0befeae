"""Rules that several providers share. Each yields (path, message) pairs."""

import json


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
