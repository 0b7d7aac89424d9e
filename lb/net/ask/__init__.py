"""Calls of our own to backends: one request, one answer, on a connection of its own."""
