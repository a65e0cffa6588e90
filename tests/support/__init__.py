"""Helpers that tests of several folders share. No test lives here."""
