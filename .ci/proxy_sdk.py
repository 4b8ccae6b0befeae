"""Uses the official Python SDKs, for proxy.py: python proxy_sdk.py API URL CONVERSATION.

Prints the conversation as a JSON list: role and text, calls, results.
"""

import json
import sys

import anthropic
import openai

API, URL, CONVERSATION = sys.argv[1:]
HEADERS = {"x-treering-conversation": CONVERSATION}
SCHEMA = {"type": "object", "properties": {"key": {"type": "string"}}}
said = []


def note(kind, *what):
    said.append([kind, *what])


def chat(stream):
    client = openai.OpenAI(base_url=URL + "/v1", api_key="sk-none", default_headers=HEADERS)
    tools = [{"type": "function", "function": {"name": "lookup", "parameters": SCHEMA}}]
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "look x up"}]
    note("system", "be brief")
    note("user", "look x up")
    for _ in range(2):
        asked = {"model": "gpt-4o", "messages": messages, "tools": tools}
        if stream:
            with client.chat.completions.stream(**asked) as events:
                for _ in events:
                    pass
                answer = events.get_final_completion().choices[0].message
        else:
            answer = client.chat.completions.create(**asked).choices[0].message
        messages.append(answer.model_dump(exclude_none=True))
        if answer.content:
            note("assistant", answer.content)
        for call in answer.tool_calls or []:
            note("call", call.function.name, json.loads(call.function.arguments))
            result = {"role": "tool", "tool_call_id": call.id, "content": "x is 7"}
            messages.append(result)
            note("result", "x is 7")


def responses(stream):
    """Non-streamed requests name the last answer; streamed requests repeat all items."""
    client = openai.OpenAI(base_url=URL + "/v1", api_key="sk-none", default_headers=HEADERS)
    tools = [{"type": "function", "name": "lookup", "parameters": SCHEMA, "strict": False}]
    asked = [{"role": "user", "content": "look x up"}]
    last = None
    note("system", "be brief")
    note("user", "look x up")
    for _ in range(2):
        more = {"model": "gpt-5.4", "instructions": "be brief", "tools": tools, "input": asked}
        if stream:
            with client.responses.stream(**more, store=False) as events:
                for _ in events:
                    pass
                answer = events.get_final_response()
            asked += [item.model_dump(exclude_none=True) for item in answer.output]
        else:
            answer = client.responses.create(**more, previous_response_id=last)
            last, asked = answer.id, []
        for item in answer.output:
            if item.type == "message":
                note("assistant", item.content[0].text)
            elif item.type == "function_call":
                note("call", item.name, json.loads(item.arguments))
                output = {"type": "function_call_output", "call_id": item.call_id, "output": "x is 7"}
                asked.append(output)
                note("result", "x is 7")


def messages(stream):
    client = anthropic.Anthropic(base_url=URL, api_key="sk-none", default_headers=HEADERS)
    tools = [{"name": "lookup", "input_schema": SCHEMA}]
    asked = [{"role": "user", "content": "look x up"}]
    note("system", "be brief")
    note("user", "look x up")
    for _ in range(2):
        more = {"model": "claude-sonnet-4-5", "max_tokens": 100, "system": "be brief",
                "tools": tools, "messages": asked}  # fmt: skip
        if stream:
            with client.messages.stream(**more) as events:
                for _ in events:
                    pass
                answer = events.get_final_message()
        else:
            answer = client.messages.create(**more)
        asked.append({"role": "assistant", "content": answer.content})
        results = []
        for block in answer.content:
            if block.type == "text":
                note("assistant", block.text)
            elif block.type == "tool_use":
                note("call", block.name, block.input)
                note("result", "x is 7")
                results.append({"type": "tool_result", "tool_use_id": block.id, "content": "x is 7"})
        if results:
            asked.append({"role": "user", "content": results})


talks = {"chat": chat, "responses": responses, "messages": messages}
name, _, how = API.partition("-")
talks[name](how == "stream")
print(json.dumps(said))
