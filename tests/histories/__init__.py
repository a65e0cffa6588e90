"""Recorded histories that must fold for ever to what they folded to when they were recorded."""
