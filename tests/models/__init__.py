"""Metadata of models and estimates of their memory."""
