"""Scripts that run inside a peer's own virtual environment; they import nothing of agilerl_like."""
