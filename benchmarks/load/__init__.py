"""Side-by-side load benchmark: triton-lb against Envoy, HAProxy and nginx, same backend, same run.

Reading order: `cells` (what is measured) and `targets` (what should come out), `payloads` (the
bytes on the wire), `processes` (children, cores, CPU accounting), `backend` (the fast stand-ins for
Triton: nginx, nghttpd, `grpc_backend`, `events_backend`), `proxies` (who is compared), `drivers`
(load generators: wrk, h2load, and ours in `h2client`, `player` with `links`, `events_client`),
`bench` (the run), `results` (what it gives), `report`, `plots`. `sections`: how further parts join
the report: `stalls` (with `disturb`, `bystander`, `fleet_backend`), `idle`, `real_clients`.
"""
