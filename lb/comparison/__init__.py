"""Answers of two models to the same requests, compared in a process of its own."""
