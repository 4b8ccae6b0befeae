"""The messages of the API, generated from `proto/treering/v1` by `scripts/make_stubs.py`."""
