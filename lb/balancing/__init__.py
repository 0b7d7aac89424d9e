"""Policies: how one backend is chosen among the eligible ones. Pure; one file each.

A policy is what configuration names; a picker is what it builds over a fixed set. Both protocols
share one policy, so `Backend.in_flight` and `Backend.last_pick` mean the same to both pickers.
"""
