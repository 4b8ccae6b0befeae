"""The client, as it is written: for asyncio. `_sync` is made of it by `scripts/make_sync.py`."""
