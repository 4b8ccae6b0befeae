"""The client. `_async` is written by hand; `_sync` is made of it by `scripts/make_sync.py`."""
