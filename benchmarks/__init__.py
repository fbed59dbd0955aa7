"""Speed and quality beside other libraries; run from the project's root as ``python -m benchmarks.<script>``."""
