"""The client. `scripts/make_sync.py` generates `_sync` from `_async`."""
