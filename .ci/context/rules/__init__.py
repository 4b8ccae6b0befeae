"""What no type can say about a request: who may follow whom, and what pairs.

`broken(provider, body)` gives (path, message) pairs, none when all rules hold.
Written from the providers' API references and error texts, on purpose without
a look at Treering's own checker: the two watch each other.
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
    """The rules that a body of a provider breaks, as (path, message) pairs."""
    found = list(RULES[provider](body))
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
