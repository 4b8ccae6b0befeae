"""Rules for requests that types cannot express, such as order and pairs.

`broken(provider, body)` returns (path, message) pairs, none if all rules hold.
Written from the providers' API references and error messages, deliberately
without reading Treering's own checker: each can show faults of the other.
"""

from . import anthropic, gemini, openai_chat, openai_responses
from .shared import blank

RULES = {
    "openai-chat": openai_chat.broken,
    "openai-responses": openai_responses.broken,
    "anthropic": anthropic.broken,
    "gemini": gemini.broken,
}


def broken(provider, body):
    """The rules that a body breaks, as (path, message) pairs."""
    found = list(RULES[provider](body))
    if provider != "gemini" and blank(body["model"]):
        found.append(("model", "no model is named"))
    return found


def system_prompt(provider, body):
    """The value at the provider's place for the system prompt, or None."""
    if provider == "openai-chat":
        first = body["messages"][0]
        return first["content"] if first["role"] in ("system", "developer") else None
    members = {
        "openai-responses": "instructions",
        "anthropic": "system",
        "gemini": "systemInstruction",
    }
    return body.get(members[provider])
