"""Tests of the shells against real servers, processes and signals."""
