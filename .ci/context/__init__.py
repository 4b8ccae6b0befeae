"""Parts of `context_check.py`: checks of built requests, independent of Treering's own."""
