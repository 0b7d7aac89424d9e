"""Side-by-side load benchmark: triton-lb against Envoy, HAProxy and nginx, same backend, same run.

Reading order: `cells` (what is measured), `payloads` (the bytes on the wire), `processes`
(children, cores, CPU accounting), `backend` (the fast stand-in for Triton), `proxies` (who is
compared), `drivers` (load generators), `bench` (the run), `report` (tables and files).
"""
