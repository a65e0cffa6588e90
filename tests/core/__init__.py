"""Tests of the pure core: given facts, when a fact, then decisions or effects. No clock, no I/O."""
