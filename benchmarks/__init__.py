"""Speed and memory of acil, measured: `python -m benchmarks` runs everything."""
