"""Calls that concern all backends: one question of a client becomes one to each of them."""
