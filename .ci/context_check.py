"""Checks built requests against the types of the providers' own packages.

Usage: context_check.py ADDRESS [--all | --sample=N] [--jobs=N]   (self test: --prove)

Builds the next request of each conversation in a fixed sample (`--all`: of every
conversation) on a running server that holds recorded conversations: for all four
providers, and at the places where requests tend to break. Checks each body against
the types of the provider's Python package (`context/typed.py`) and against rules
that types cannot express (`context/rules`). Adds histories of its own
(`context/oddities.py`), and forks in the middle of a batch of calls.

Exits with 1 if a body fails, and prints its conversation, provider, cut, path in
the body, and reason.
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import grpc

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples" / "python"))

import client  # noqa: E402
from client import Treering, message  # noqa: E402
from context import author, broken, cuts, rules, typed  # noqa: E402
from context.oddities import Oddities  # noqa: E402
from context.systems import Systems  # noqa: E402
from treering.v1 import context_pb2, context_pb2_grpc, conversation_pb2  # noqa: E402

# Conversations of each source in the sample; fewer where they are long.
SAMPLE = {"claude-code-entire": 16}
SAMPLE_OTHERWISE = 40

# Other branches of a conversation to check, in the sample.
BRANCHES = 2

# Failures to print of each kind; all are counted.
SHOWN = 3

# Conversations between two progress lines.
PROGRESS = 500

# The largest histories may take long on a loaded server.
BUILD_SECONDS = 120


class Server:
    """The calls that the check needs."""

    def __init__(self, address, namespace="default"):
        self.db = Treering(address, namespace)
        self.contexts = context_pb2_grpc.ContextsStub(self.db.channel)

    def build(self, conversation, provider, cut):
        """A request's body and its explanation."""
        request = context_pb2.BuildRequest(
            conversation_id=conversation,
            branch=cut.branch,
            as_of_revision=cut.as_of,
            provider=context_pb2.Provider.Value(f"PROVIDER_{provider.upper().replace('-', '_')}"),
            model=typed.MODELS[provider],
            policy=cut.policy.encode(),
        )
        how = {"metadata": self.db.metadata, "timeout": BUILD_SECONDS}
        built = self.contexts.Build(request, **how)
        return json.loads(built.request), built.explanation

    def conversations(self):
        """(source, id in the source, id), sorted."""
        listed, token = [], ""
        while True:
            request = conversation_pb2.ListConversationsRequest(page_size=1000, page_token=token)
            page = self.db.conversations.List(request, metadata=self.db.metadata, timeout=60)
            listed += [(c.source, c.source_id, c.conversation_id) for c in page.conversations]
            token = page.next_page_token
            if not token:
                return sorted(one for one in listed if one[0] not in ("", Oddities.source))

    def branches(self, conversation):
        request = conversation_pb2.GetConversationRequest(conversation_id=conversation)
        state = self.db.conversations.Get(request, metadata=self.db.metadata, timeout=60)
        return [branch.name for branch in state.branches if not branch.active]

    def fork(self, conversation, name, system_prompt):
        """Makes a branch at the head, with its own system prompt."""
        request = conversation_pb2.ForkRequest(
            conversation_id=conversation, name=name, system_prompt=system_prompt
        )
        self.db.conversations.Fork(request, metadata=self.db.metadata, timeout=30)


class Findings:
    """The results for one conversation's requests. Workers pickle it to the main process."""

    def __init__(self, source, source_id):
        self.source, self.source_id = source, source_id
        self.passed, self.failed = Counter(), []

    def add(self, provider, cut, found):
        if not found:
            self.passed[provider] += 1
        for path, what in found[:SHOWN]:
            self.failed.append((provider, cut.name, path, what))


# ---- one conversation, in a process of the pool ----


def connect(address, namespace="default"):
    global server
    server = Server(address, namespace)


def check_recorded(place, all_branches):
    """Checks a recorded conversation at its cuts, on its branches, and on a fork."""
    source, source_id, conversation = place
    findings = Findings(source, source_id)
    events = list(server.db.read(conversation))
    prompted = begins_with_a_prompt(events)
    for cut in cuts.of(events, client):
        tokens = check_cut(findings, conversation, cut, prompted)
    check_cut(findings, conversation, cuts.budget(tokens), prompted)
    check_cut(findings, conversation, cuts.TURN_END, prompted)
    branches = server.branches(conversation)
    for name in branches if all_branches else branches[:BRANCHES]:
        check_cut(findings, conversation, cuts.Cut(f"branch {name}", branch=name))
    check_interrupted(findings, conversation, events)
    return findings


def begins_with_a_prompt(events):
    """True if the first message is a system message and there is no compaction."""
    messages = (e.message_appended for e in events if e.HasField("message_appended"))
    first = next(messages, None)
    is_prompt = first is not None and first.role == client.event_pb2.ROLE_SYSTEM
    return is_prompt and not any(e.HasField("compacted") for e in events)


def check_interrupted(findings, conversation, events):
    """Checks a fork on which calls are open, the tools of the history are defined
    and the user sends a message. A fork leaves the other branches unchanged."""
    at = cuts.in_a_batch(events)
    if at is None:
        return
    name = "context-check"
    if name not in server.branches(conversation):
        server.db.fork(conversation, at, name)
        spoken = message("user", "Leave that. What have you seen?")
        server.db.append([definitions(events), spoken], conversation, name)
    cut = cuts.Cut("forked in a batch, and the user speaks", branch=name)
    check_cut(findings, conversation, cut)


def definitions(events):
    """Definitions of the tools that a history calls, with all argument names that it uses."""
    members = {}
    for call in (e.tool_call_requested for e in events if e.HasField("tool_call_requested")):
        given = json.loads(call.arguments)
        members.setdefault(call.tool, {}).update(given if isinstance(given, dict) else {})
    tools = [
        client.event_pb2.ToolDefinition(
            name=name,
            description=f"The recorded tool {name}.",
            input_schema=json.dumps(schema_of(given)).encode(),
        )
        for name, given in members.items()
    ]
    return client.event_pb2.NewEvent(tools_defined=client.event_pb2.ToolsDefined(tools=tools))


def schema_of(value):
    """A JSON Schema that the value satisfies."""
    if isinstance(value, dict):
        inner = {name: schema_of(one) for name, one in value.items()}
        return {"type": "object", "properties": inner, "additionalProperties": False}
    if isinstance(value, list):
        return {"type": "array", "items": schema_of(value[0])} if value else {"type": "array"}
    names = {str: "string", bool: "boolean", int: "integer", float: "number"}
    return {"type": names.get(type(value), "null")}


def check_story(name, conversation):
    """Checks a story of `oddities.py` at each of its revisions, with each policy."""
    findings = Findings(Oddities.source, name)
    check_revisions(findings, conversation)
    return findings


def check_revisions(findings, conversation):
    for event in server.db.read(conversation):
        cut = cuts.Cut(f"revision {event.revision}", as_of=event.revision)
        tokens = check_cut(findings, conversation, cut)
    for cut in (cuts.TURN_END, cuts.budget(tokens), cuts.budget(1)):
        check_cut(findings, conversation, cut)


def check_system(name, expectations):
    """Checks a story of `systems.py`, which lists the expected texts of each request."""
    findings = Findings(Systems.source, name)
    for conversation in dict.fromkeys(one.conversation for one in expectations):
        check_revisions(findings, conversation)
    for one in expectations:
        for provider in typed.PROVIDERS:
            body, explanation = server.build(one.conversation, provider, one.cut)
            findings.add(
                provider, one.cut, judged(provider, body, explanation) or missing(one, body)
            )
    return findings


def missing(expected, body):
    """Expected texts that the request lacks, and forbidden texts that it has."""
    text = json.dumps(body, ensure_ascii=False)
    found = [("", f"{one!r} is not in it") for one in expected.present if one not in text]
    return found + [("", f"{one!r} is in it") for one in expected.absent if one in text]


def check_cut(findings, conversation, cut, prompted=False):
    """Checks a cut for each provider. `prompted`: there must be a system prompt.
    Returns the largest number of tokens of a request."""
    tokens = 0
    for provider in typed.PROVIDERS:
        try:
            body, explanation = server.build(conversation, provider, cut)
        except grpc.RpcError as error:
            findings.add(provider, cut, [(error.code().name, error.details())])
            continue
        tokens = max(tokens, explanation.tokens)
        found = judged(provider, body, explanation)
        if prompted and not found and not rules.system_prompt(provider, body):
            found.append(("", "the system prompt is not where the provider wants it"))
        findings.add(provider, cut, found)
    return tokens


def judged(provider, body, explanation):
    """All errors of a body, as (path, message) pairs."""
    found = typed.errors(provider, body)
    # The rules rely on the right types.
    found = found or rules.broken(provider, body)
    bound = explanation.budget_tokens
    if bound and explanation.tokens > bound and not explanation.over_budget:
        found.append(("", f"{explanation.tokens} tokens over a budget of {bound}, unsaid"))
    return found


# ---- all conversations ----


def sample_of(places, size):
    """Every k-th conversation of each source, so that there are at most `size`."""
    by_source = {}
    for place in places:
        by_source.setdefault(place[0], []).append(place)
    chosen = []
    for source, listed in by_source.items():
        step = -(-len(listed) // (size or SAMPLE.get(source, SAMPLE_OTHERWISE)))
        chosen += listed[::step]
    return chosen


def run(args):
    here = Server(args.address)
    places = here.conversations()
    chosen = places if args.all else sample_of(places, args.sample)
    print(f"{len(chosen):,} of {len(places):,} conversations")
    told = {name: author.tell(here.db, story) for name, story in Oddities(client).all().items()}
    with pool(args, "default") as workers:
        waiting = [workers.submit(check_story, *one) for one in told.items()]
        waiting += [workers.submit(check_recorded, place, args.all) for place in chosen]
        results = list(results_of(waiting))
    return results + run_systems(args)


def results_of(waiting):
    for count, one in enumerate(waiting, 1):
        yield one.result()
        if count % PROGRESS == 0:
            print(f"{count:,} of {len(waiting):,}", flush=True)


def run_systems(args):
    """Uses its own namespace, because the stories write its long-term context."""
    there = Server(args.address, Systems.source)
    told = Systems(client, context_pb2, there).all()
    with pool(args, Systems.source) as workers:
        waiting = [workers.submit(check_system, *one) for one in told.items()]
        return [one.result() for one in waiting]


def pool(args, namespace):
    # gRPC breaks in a forked process.
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(args.jobs, spawn, connect, (args.address, namespace))


def report(results):
    """Prints the table and the failures. Returns whether all passed."""
    passed, failed = Counter(), {}
    for one in results:
        for provider, count in one.passed.items():
            passed[one.source, provider] += count
        for provider, cut, path, what in one.failed:
            kind = (provider, what[:60])
            failed.setdefault(kind, []).append((one.source, one.source_id, cut, path, what))
    print(f"\n{'requests that passed':<24}" + "".join(f"{p:>18}" for p in typed.PROVIDERS))
    for source in sorted({source for source, _ in passed}):
        print(f"{source:<24}" + "".join(f"{passed[source, p]:>18,}" for p in typed.PROVIDERS))
    print(f"{'all':<24}{passed.total():>18,}")
    for (provider, _), cases in sorted(failed.items(), key=lambda one: -len(one[1])):
        print(f"\n{provider}: {len(cases):,} of a kind")
        for source, source_id, cut, path, what in cases[:SHOWN]:
            print(f"  {source} {source_id}, {cut}\n    {path or 'the whole'}: {what[:300]}")
    return not failed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("address", nargs="?")
    parser.add_argument("--all", action="store_true", help="every conversation")
    parser.add_argument("--sample", type=int, metavar="N", help="so many of each source")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--prove", action="store_true", help="only check the check")
    args = parser.parse_args()
    print(f"self test: {broken.prove()} broken bodies are told from good ones")
    if args.prove:
        return
    if not args.address:
        parser.error("the server's address is missing")
    started = time.monotonic()
    passed = report(run(args))
    print(f"{time.monotonic() - started:.0f} s")
    if not passed:
        sys.exit("context check: requests that a provider would refuse")


if __name__ == "__main__":
    main()
