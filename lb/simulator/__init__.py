"""A small simulated Triton server: a few models, answered over HTTP and gRPC as Triton 2.51 would.

For the demo and for tests. `tensors` and `errors` are the vocabulary, `models` is what can be
inferred, `server` runs and counts inferences, `http_*` and `grpc_*` speak the protocols, `process`
is the life of `python -m lb.simulator`. Error texts are Triton's, because clients match on them.
"""
