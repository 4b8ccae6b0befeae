# Made of _async/__init__.py by scripts/make_sync.py: change that, and run it again.
"""The client, as it is written: for asyncio. `_sync` is made of it by `scripts/make_sync.py`."""
