"""Catalogs: what is accepted, and what every mistake is answered with."""
