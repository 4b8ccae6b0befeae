"""How objects are shown in a shell and in a notebook."""

from __future__ import annotations

from html.parser import HTMLParser

import treering

from .conftest import Server, run

MARK = "<script>alert('x')</script> & co"


def _rows(html: str) -> list[list[str]]:
    """The cells of the tables; fails if a cell contains markup."""
    rows: list[list[str]] = []

    class Reader(HTMLParser):
        is_cell = False

        def handle_starttag(self, tag: str, attributes: object) -> None:
            assert tag in ("table", "caption", "tr", "th", "td"), tag
            if tag == "tr":
                rows.append([])
            self.is_cell = tag in ("th", "td")
            if self.is_cell:
                rows[-1].append("")

        def handle_data(self, data: str) -> None:
            if self.is_cell:
                rows[-1][-1] += data

    Reader().feed(html)
    return rows


# `repr` showed an address in memory or a whole request, but not what the object was.
def test_objects_say_what_they_are(conv: treering.Conversation) -> None:
    conv.user("Where is\nthe port set?")
    conv.tool_call("grep", {"pattern": "port"}).start()
    said, call, _ = list(conv.events(first=2))
    assert "kind='message_appended', role='user', text='Where is the port set?'" in repr(said)
    assert "kind='tool_call_requested', tool='grep'" in repr(call)
    assert len(repr(next(conv.events(first=conv.user("long " * 999).revision)))) < 300
    [main] = conv.branches()
    assert repr(main).startswith("Branch(name='main', head=5, active=True")
    request = conv.request("openai-chat", model="gpt-4o")
    assert repr(request).startswith("Request('openai-chat', model='gpt-4o', tokens=")
    assert "long long" not in repr(request) and "messages" in repr(request)
    assert str(request) == str(dict(request))
    assert repr(conv) == f"Conversation({conv.id!r})"


# A notebook showed the same. Recorded text must never become markup there.
def test_tables_of_a_notebook(db: treering.Treering) -> None:
    conv = db.create(MARK, labels={"team": MARK})
    conv.user(MARK)
    html = conv._repr_html_()
    assert ["team", MARK] in _rows(html) and ["2", "user", MARK] in _rows(html)
    hits = db.search("alert")
    assert [conv.id, "2", "message_appended", "1", MARK] in _rows(hits._repr_html_())
    request = conv.request("anthropic", model="claude-sonnet-4-5", budget=9_000)
    assert "of 9,000 tokens at #2" in request._repr_html_()
    sections = [row[0] for row in _rows(request._repr_html_())]
    assert sections == ["section", "open turn"]


# Showing a conversation must not wait for a server that is down, nor for asyncio.
def test_a_conversation_that_cannot_be_asked(server: Server) -> None:
    with treering.connect(server.address) as db:
        conv = db.create("Gone")
        server.kill()
        rows = _rows(conv._repr_html_())
        assert rows[0] == ["id", conv.id] and rows[-1][0] == "error"

    async def shown() -> str:
        async with treering.aio.connect(server.address) as db:
            return db.conversation("abc")._repr_html_()

    assert ["id", "abc"] in _rows(run(shown()))


# Reading messages required a filter with the names of kinds.
def test_messages_of_a_branch(conv: treering.Conversation) -> None:
    first = conv.user("One")
    conv.assistant("Two", tool_calls=[("c", "ls", {})])
    conv.tool_result("c", "README.md")
    conv.user("Three")
    said = [(message.role, message.text) for message in conv.messages()]
    assert said == [("user", "One"), ("assistant", "Two"), ("user", "Three")]
    assert [message.text for message in conv.messages(limit=2)] == ["Two", "Three"]
    # Messages that were rewound are not returned.
    conv.rewind(first.revision)
    assert [message.text for message in conv.messages()] == ["One"]
    other = conv.fork(name="other")
    other.assistant("Four")
    assert [message.text for message in other.messages()] == ["One", "Four"]
