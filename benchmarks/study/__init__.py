"""Scheduling, side by side: what a load balancer makes of Tritons that are not alike.

`python -m benchmarks.study` puts real Tritons, whose models sleep as GPUs of given speeds compute,
behind triton-lb and its peers, plays the same arrivals to each in turn, and compares latency,
throughput and goodput with each other and with a simulated perfect dispatcher.
`benchmarks/README.md` says how to read what it prints.
"""
