"""Parts of `context_check.py`: what makes a built request legal, told by others."""
