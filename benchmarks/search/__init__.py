"""Does a search find better hyperparameters at equal environment steps? `python -m benchmarks.search` answers it."""
