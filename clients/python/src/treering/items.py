"""Operations for `db.items.batch`.

>>> from treering import items
>>> ops = [items.put(("a",), "x", 1), items.get(("a",), "x"), items.delete(("a",), "y")]
>>> results = db.items.batch(ops)
>>> results[1].got.HasField("item")  # it was not there before the batch
False
"""

from __future__ import annotations

from treering._item_ops import Condition, Sign, conditions
from treering._item_ops import delete_op as delete
from treering._item_ops import get_op as get
from treering._item_ops import paths_op as paths
from treering._item_ops import put_op as put
from treering._item_ops import search_op as search

__all__ = ["Condition", "Sign", "conditions", "delete", "get", "paths", "put", "search"]
