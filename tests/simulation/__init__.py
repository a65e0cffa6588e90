"""Seeded simulations of a whole cluster under faults."""
