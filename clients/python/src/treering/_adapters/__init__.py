"""What the adapters of frameworks share: nothing here imports a framework."""
