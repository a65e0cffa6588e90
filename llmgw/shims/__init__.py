"""Servers that run in a process of their own where an engine ships none that llmgw can start."""
