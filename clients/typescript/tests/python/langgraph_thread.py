"""Runs a graph on a thread: `langgraph_thread.py ADDRESS NAMESPACE MODEL_URL PROMPT…`.

Sends the prompts to the agent, and prints the messages of the thread.
"""

import json
import sys
import urllib.request

import treering
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph
from treering.langgraph import TreeringSaver, messages

ROLES = {"human": "user", "ai": "assistant", "tool": "tool", "system": "system"}


def ask(state):
    said = [{"role": ROLES[each.type], "content": each.text} for each in state["messages"]]
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps({"model": "gpt-4o", "messages": said}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        answered = json.load(answer)["choices"][0]["message"]
    calls = [
        {
            "id": call["id"],
            "name": call["function"]["name"],
            "args": json.loads(call["function"]["arguments"]),
        }
        for call in answered.get("tool_calls") or ()
    ]
    return {"messages": [AIMessage(answered["content"], tool_calls=calls)]}


def act(state):
    return {
        "messages": [
            ToolMessage(f"It rains in {call['args']['city']}.", tool_call_id=call["id"])
            for call in state["messages"][-1].tool_calls
        ]
    }


def next_of(state):
    return "act" if getattr(state["messages"][-1], "tool_calls", None) else "__end__"


address, namespace, url, *prompts = sys.argv[1:]
builder = StateGraph(MessagesState)
builder.add_node("ask", ask)
builder.add_node("act", act)
builder.add_edge(START, "ask")
builder.add_conditional_edges("ask", next_of, ["act", "__end__"])
builder.add_edge("act", "ask")
with treering.connect(address, namespace=namespace) as db:
    saver = TreeringSaver(db)
    graph = builder.compile(checkpointer=saver)
    thread = {"configurable": {"thread_id": "thread"}}
    for prompt in prompts:
        graph.invoke({"messages": [("user", prompt)]}, thread)
    history = list(graph.get_state_history(thread))
    kept = history[0].values["messages"] if history else []
    said = [
        [each.type, each.text, [call["args"] for call in getattr(each, "tool_calls", ())]]
        for each in kept
    ]
    conversation = saver.conversation("thread")
    print(
        json.dumps(
            {
                "said": said,
                "steps": len(history),
                "mirrored": [each.text for each in messages(conversation)],
                "branches": len(conversation.branches()),
                "sound": db.verify(deep=True).sound,
            }
        )
    )
