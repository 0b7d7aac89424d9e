"""Policies: how one backend is chosen among the eligible ones. Pure; one file each.

A policy is what configuration names; a picker is what it builds over a fixed set. Both protocols
share one policy, so `Backend.in_flight` and `Backend.last_pick` mean the same to both pickers.

Requests of scheduled models go by `scheduler` instead: `cost`, `model_backend` and `batching` say
when one would end where, `eligible_set` and `selection` which model backend is best, `model_queue`
and `waiting` who is next, `capacity` how many run at once, `external_load` what others than we do
there. `shared_scheduler` is the same for processes that share backends.
"""
