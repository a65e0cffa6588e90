"""Measurements, each against its floor or a peer in the same run: `python -m tests.benchmarks`."""
