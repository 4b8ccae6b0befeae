"""Imports, exports, verifies and searches real trajectories by the command line.

Usage: real_data.py BINARY DATA_DIR [--skip NAME]... [--keep DIR]

Imports every DATA_DIR/trajectories/*.jsonl.zst into one new store. Checks that the
export is equal, a second import adds nothing, and search finds phrases. Prints
measurements. Exits with 1 and prints the check that failed.

`--skip agentdojo-rest` leaves out the file that only adds volume.
"""

import argparse
import io
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import zstandard

# Conversations of each source to search.
SAMPLE = 6


def must(fact, what, **seen):
    if not fact:
        shown = ", ".join(f"{name}={str(value)[:300]}" for name, value in seen.items())
        raise AssertionError(f"{what} ({shown})" if shown else what)


class Store:
    """A store, used by the command line."""

    def __init__(self, binary, folder):
        self.binary, self.folder = binary, folder

    def start(self, command, *args, **how):
        line = [self.binary, command, "--data", str(self.folder), *map(str, args)]
        return subprocess.Popen(line, stdout=subprocess.PIPE, text=True, encoding="utf-8", **how)

    def lines(self, command, *args):
        """The lines that a command prints. It must exit with 0."""
        with self.start(command, *args) as run:
            yield from run.stdout
            code = run.wait()
        must(code == 0, f"`{command}` exits with 0", code=code, args=args)

    def objects(self, command, *args):
        return (json.loads(line) for line in self.lines(command, "--json", *args))

    def stats(self):
        (stats,) = self.objects("stats")
        return stats

    def bytes_on_disk(self):
        """Allocated bytes by part of the store (log, index, views)."""
        sizes = Counter()
        for file in self.folder.rglob("*"):
            if file.is_file():
                part = file.relative_to(self.folder).parts[0]
                sizes[part] += file.stat().st_blocks * 512
        return sizes


def source_lines(file):
    """The conversations of a file, each with the size of its line in bytes."""
    with open(file, "rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as plain:
        for line in io.BufferedReader(plain, 1 << 20):
            if line.strip():
                yield json.loads(line), len(line)


def key(conversation):
    return conversation["source"], conversation["id"]


# ---- the checks ----


def check_import(store, files):
    """Imports all files and checks the number of conversations. Returns seconds."""
    started = time.monotonic()
    report = "".join(store.lines("import", "--format", "openai-chat", *files))
    seconds = time.monotonic() - started
    print(report.rstrip())
    expected = sum(1 for file in files for _ in source_lines(file))
    stats = store.stats()
    must(
        stats["conversations"] == expected,
        "every line became a conversation",
        lines=expected,
        conversations=stats["conversations"],
    )
    return seconds


def check_export(store, files):
    """Checks that the export has every line, equal as JSON. Returns seconds."""
    started = time.monotonic()
    # The export is in the order of the import. `given` holds lines that come early.
    exported = store.lines("export", "--format", "openai-chat")
    given = {}
    count = 0
    for file in files:
        for conversation, _ in source_lines(file):
            count += 1
            while key(conversation) not in given:
                line = next(exported, None)
                must(line is not None, "every conversation is exported", missing=key(conversation))
                one = json.loads(line)
                must(key(one) not in given, "a conversation is exported once", which=key(one))
                given[key(one)] = one
            back = given.pop(key(conversation))
            if as_json(back) != as_json(conversation):
                raise AssertionError(first_difference(conversation, back))
    must(not given, "nothing else is exported", more=list(given)[:3])
    must(next(exported, None) is None, "nothing else is exported")
    print(f"export: {count:,} lines equal")
    return time.monotonic() - started


def as_json(value):
    """JSON text. It distinguishes 1, 1.0 and true, which Python's `==` does not."""
    return json.dumps(value, sort_keys=True)


def first_difference(expected, back):
    where = f"{expected['source']} {expected['id']} comes back different"
    for index, (one, other) in enumerate(zip(expected["messages"], back["messages"])):
        if as_json(one) != as_json(other):
            fields = [
                field
                for field in {**one, **other}
                if as_json([one.get(field)]) != as_json([other.get(field)])
            ]
            return f"{where}: message {index}, fields {fields}"
    return f"{where}: not in its messages {sorted(expected)} {sorted(back)}"


def check_second_import(store, files):
    """Checks that a second import of the same files adds nothing."""
    before = store.stats()
    report = "".join(store.lines("import", "--format", "openai-chat", *files))
    after = store.stats()
    for fact in ("events", "conversations", "head"):
        must(before[fact] == after[fact], f"a second import adds no {fact}", report=report)
    print(f"second import: nothing added to {after['events']:,} events")


def check_verify(store):
    started = time.monotonic()
    print("verify:", "".join(store.lines("verify", "--deep")).rstrip())
    return time.monotonic() - started


def check_list(store, files):
    """Checks that `ls` has every conversation, with a branch for each leaf."""
    listed = {(one["source"], one["source_id"]): one for one in store.objects("ls")}
    forks = 0
    for file in files:
        for conversation, _ in source_lines(file):
            row = listed.pop(key(conversation), None)
            must(row is not None, "ls has every conversation", missing=key(conversation))
            least, most = leaves_of(conversation["messages"])
            forks += row["branches"] > 1
            held = least <= row["branches"] <= most
            must(held, "each leaf of a tree is a branch", leaves=(least, most), row=row)
    must(not listed, "ls has nothing else", more=list(listed)[:3])
    print(f"ls: all there; {forks} with branches")


def leaves_of(messages):
    """The least and the most branches that a tree by `x.parent` may have. A list has one. A
    leaf needs no branch if the line goes on without it: a result, a notice, a message sent
    while calls ran."""
    followed = set()
    for at, message in enumerate(messages):
        # A message without a parent follows the one before it.
        followed.add(parent_of(message, at))
    ends = [at for at in range(len(messages)) if at not in followed]
    may_be_none = [at for at in ends if told_beside(messages, at)]
    return max(1, len(ends) - len(may_be_none)), max(1, len(ends))


def parent_of(message, at):
    parent = (message.get("x") or {}).get("parent")
    return at - 1 if parent is None else parent


def told_beside(messages, at):
    message, parent = messages[at], parent_of(messages[at], at)
    extra = message.get("x") or {}
    # The output of a command and a compaction may have the same parent.
    if extra.get("compact_boundary") or extra.get("compact_summary"):
        return True
    if message["role"] == "user":
        local = ("<local-command-", "<command-name>", "<bash-input>", "<bash-std", "Caveat: The messages below")
        if str(message.get("content")).lstrip().startswith(local):
            return True
        asks = parent >= 0 and messages[parent].get("tool_calls")
        return bool((message.get("x") or {}).get("meta") or asks)
    return message["role"] == "tool"


def check_search(store, files):
    """Checks that search finds phrases of tool results at their bytes. Returns seconds of each."""
    took = []
    for file in files:
        sample = []
        for conversation, _ in source_lines(file):
            phrase = distinctive(conversation["messages"])
            if phrase:
                sample.append((conversation, *phrase))
            if len(sample) == SAMPLE:
                break
        for conversation, phrase, texts in sample:
            took.append(find(store, conversation, phrase, texts))
        print(f"search: {file.name}: {len(sample)}")
    print(f"search: {len(took)} phrases found where they are")
    return took


def distinctive(messages):
    """Four consecutive words of a tool result that occur once, and that result."""
    texts = [m["content"] for m in messages if isinstance(m.get("content"), str)]
    for message in messages:
        text = message.get("content")
        if message["role"] != "tool" or not isinstance(text, str):
            continue
        for match in re.finditer(r"(?<!\w)[A-Za-z]{3,12}(?: [A-Za-z]{3,12}){3}(?!\w)", text):
            phrase = match.group()
            if sum(other.count(phrase) for other in texts) == 1:
                return phrase, {message.get("tool_call_id"): text}
    return None


def find(store, conversation, phrase, texts):
    started = time.monotonic()
    ask = ["-k", 20, "--conversation", conversation["id"], f'"{phrase}"']
    hits = list(store.objects("search", *ask))
    seconds = time.monotonic() - started
    good = [hit for hit in hits if is_there(hit, phrase, texts)]
    must(good, "a phrase is found in its result", id=conversation["id"], phrase=phrase, hits=hits)
    # The event at the hit's revision must contain the phrase.
    hit = good[0]
    events = store.objects("log", "--branch", hit["branch"], conversation["id"])
    event = next((e for e in events if e["revision"] == hit["revision"]), None)
    must(event is not None, "the hit's revision is in the log", hit=hit)
    must(phrase in text_in(event), "the event at the hit's revision has the phrase", hit=hit)
    return seconds


def is_there(hit, phrase, texts):
    text = texts.get(hit["call_id"])
    if text is None:
        return False
    part = text.encode()[hit["byte_start"] : hit["byte_end"]]
    line = text.encode()[: hit["byte_start"]].count(b"\n") + 1
    return phrase.encode() in part and line == hit["line"]


def text_in(value):
    if isinstance(value, str):
        return value
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return "\n".join(text_in(part) for part in parts)


# ---- the run ----


def run(binary, data, skip, folder):
    files = sorted((data / "trajectories").glob("*.jsonl.zst"))
    files = [file for file in files if file.name.split(".")[0] not in skip]
    must(files, "there are trajectories", folder=data)
    store = Store(binary, folder)
    imported = check_import(store, files)
    exported = check_export(store, files)
    check_second_import(store, files)
    check_list(store, files)
    searched = sorted(check_search(store, files))
    verified = check_verify(store)
    jsonl = sum(size for file in files for _, size in source_lines(file))
    stats, disk = store.stats(), store.bytes_on_disk()
    print(f"\n{len(files)} files, {jsonl:,} bytes of JSONL, {stats['events']:,} events")
    print(f"import  {imported:7.1f} s  {jsonl / imported / 1e6:6.1f} MB/s")
    print(f"export  {exported:7.1f} s  (with reading and comparing)")
    print(f"verify  {verified:7.1f} s  (deep)")
    if searched:
        print(f"search  {searched[len(searched) // 2]:7.3f} s  median, a process each")
    for part, size in sorted(disk.items(), key=lambda one: -one[1]):
        print(f"{part:<12} {size:>12,} bytes  {size / jsonl:.3f} of the JSONL")
    print(f"{'all':<12} {sum(disk.values()):>12,} bytes  {sum(disk.values()) / jsonl:.3f} of the JSONL")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("data", type=Path)
    parser.add_argument("--skip", action="append", default=[], metavar="NAME")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the store here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run(args.binary, args.data, args.skip, args.keep or Path(folder) / "store")


if __name__ == "__main__":
    try:
        main()
    except AssertionError as error:
        sys.exit(f"real data: not as it must be: {error}")
