"""Engines: command lines, environments, health and last words; and real llama.cpp servers."""
