"""Policies: how one backend is chosen among the eligible ones. Pure; one file each.

A policy is what configuration names; a picker is what it builds over a fixed set. Both protocols
share one policy, so `Backend.in_flight` and `Backend.last_pick` mean the same to both pickers.

Requests of scheduled models go by `schedule` instead: `cost`, `lanes` and `batches` say when one
would end where, `pools` and `index` which lane is best, `waiting` who is next, `adaptive` how many
run at once, `elsewhere` and `others` what others than we do there.
"""
