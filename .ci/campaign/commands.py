"""Commands of the command line, as a user would run them beside a server."""


def reading(conversation):
    """Commands that only read."""
    return [
        ["ls"],
        ["ls", "--json"],
        ["show", conversation],
        ["log", conversation],
        ["tools", conversation],
        ["knowledge", conversation],
        ["context", conversation],
        ["pending"],
        ["search", "needle0x0"],
        ["export", "--format", "openai-chat"],
        ["stats"],
        ["verify"],
        ["verify", "--deep"],
    ]


def writing(conversation, jsonl):
    """Commands that write."""
    return [
        ["append", conversation, "message", "user", "from the command line"],
        ["append", "new", "message", "user", "from the command line"],
        ["fork", conversation, "--at", "1", "--name", "from-the-command-line"],
        ["import", "--format", "openai-chat", str(jsonl)],
        ["set", conversation, "key", "1"],
        ["annotate", conversation, "--label", "x"],
        ["rebuild"],
        ["rebuild", "--index"],
        ["serve", "--listen", "127.0.0.1:0"],
        ["demo", "--exit", "--listen", "127.0.0.1:0"],
    ]


def a_file_to_import(folder):
    path = folder / "import.jsonl"
    path.write_text('{"id": "imported-1", "source": "campaign", "messages": [{"role": "user", "content": "imported"}]}\n')
    return path
