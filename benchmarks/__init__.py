"""Speed, cost and quality, beside other libraries where they have the like.

Run from the project's root: ``python -m benchmarks`` for all of them, ``python -m benchmarks.<script>`` for one.
"""
