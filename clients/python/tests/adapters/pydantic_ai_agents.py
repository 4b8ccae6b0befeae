"""Agents of Pydantic AI for the tests, and helpers to compare their messages."""

from __future__ import annotations

from typing import Any

from pydantic_ai import Agent, ModelRetry
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationStore
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter
from pydantic_ai.models import Model as AiModel
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

import treering

from .model import Model

INSTRUCTIONS = "Be brief, and look at the weather before you say anything of it."
CALL = 'call weather {"city": "Bergen"}'
RAIN = "The tool says: It rains in Bergen."


def openai(model: Model) -> OpenAIChatModel:
    provider = OpenAIProvider(base_url=f"{model.url}/v1", api_key="none")
    return OpenAIChatModel("gpt-4o", provider=provider)


def makers(model: Model) -> list[AiModel[Any]]:
    return [
        openai(model),
        OpenAIResponsesModel("gpt-4o", provider=openai(model)._provider),
        AnthropicModel(
            "claude-of-the-tests", provider=AnthropicProvider(base_url=model.url, api_key="none")
        ),
    ]


def weather(city: str) -> str:
    """The weather of a city."""
    if city == "nowhere":
        raise ModelRetry("There is no such city.")
    return f"It rains in {city}."


def helper(of: AiModel[Any], **more: Any) -> Agent[object, Any]:
    return Agent(of, instructions=INSTRUCTIONS, tools=[weather], **more)


async def loaded(store: ConversationStore, id: str) -> Conversation:
    return await store.load(id) or Conversation(conversation_id=id)


def as_json(messages: list[ModelMessage]) -> bytes:
    return ModelMessagesTypeAdapter.dump_json(messages)


def kinds(messages: list[ModelMessage]) -> list[str]:
    return [part.part_kind for message in messages for part in message.parts]


def said(messages: list[ModelMessage]) -> list[Any]:
    """The content of messages, without times and ids."""
    found: list[Any] = []
    for message in messages:
        for part in message.parts:
            content = getattr(part, "args", None) or getattr(part, "content", None)
            found.append((part.part_kind, content))
    return found


TURN = ["user-prompt", "text", "tool-call", "tool-return", "text"]
EVENTS_OF_TURN = [
    "message_appended",
    "message_appended",
    "tool_call_requested",
    "tool_result_recorded",
    "message_appended",
]


def typed_events(conversation: treering.Conversation) -> list[str]:
    plumbing = ("custom", "conversation_created", "system_prompt_set")
    return [event.kind for event in conversation.events() if event.kind not in plumbing]
