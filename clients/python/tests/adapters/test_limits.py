"""Values at the limits of the store, in the parts that all adapters share."""

from __future__ import annotations

import treering
from treering._adapters.thread import rewind


# The old branch got the name with the head appended, which the store refused for long names.
def test_rewind_of_a_branch_with_the_longest_name(conv: treering.Conversation) -> None:
    first = conv.user("one")
    for name in ("b" * 200, "ä" * 100):
        branch = conv.fork(at=first.revision, name=name)
        for text in ("two", "three"):
            branch.user(text)
            rewind(conv, branch.state(), first.revision)
        assert [event.text for event in branch.events(kinds=["message_appended"])] == ["one"]
    assert len({branch.name for branch in conv.branches()}) == 7
