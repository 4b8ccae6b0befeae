"""Code that the adapters of frameworks share. It imports no framework."""
