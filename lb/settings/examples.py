"""An example of each section of the configuration, for `docs/configuration.md`."""

from __future__ import annotations

from typing import Final

EXAMPLES: Final = {
    "listen": """\
listen:
  http: 0.0.0.0:8000
  grpc: {address: 0.0.0.0:8001, max_connection_age: 5m}
  https:
    address: 0.0.0.0:8443
    tls:
      certificates:
        - {certificate: /etc/triton-lb/tls.crt, key: /etc/triton-lb/tls.key}
  metrics: 0.0.0.0:8002
  admin: 127.0.0.1:8003
  trusted_proxies: [10.0.0.0/8]
""",
    "backends": """\
backends:
  - name: gpu-0
    http: 127.0.0.1:18000
    grpc: 127.0.0.1:18001
    metrics: 127.0.0.1:18002
  - name: gpu-1
    grpc: gpu-1.internal:8001
    tls: {ca: /etc/triton-lb/ca.crt, ports: [grpc]}
    max_requests: 64
""",
    "discovery": """\
discovery:
  files: [/etc/triton-lb/backends.yaml]
  dns:
    - {host: triton.serving.svc.cluster.local., http_port: 8000, grpc_port: 8001}
  kubernetes:
    - {service: triton, http_port: http, grpc_port: grpc}
""",
    "diagnostics": """\
diagnostics:
  headers: role
  request_ids: true
""",
    "fronts": """\
fronts:
  sagemaker: {enabled: true, default_model: resnet}
""",
    "balancing": """\
balancing:
  policy: least_requests
""",
    "scheduling": """\
scheduling:
  max_wait: 5s
  deadline_header: x-triton-lb-timeout
  priority_header: x-triton-lb-priority
""",
    "sequences": """\
sequences:
  affinity: rendezvous
""",
    "models": """\
models:
  llama: {max_requests_per_backend: 64}
  counter: {retry: never}
  detector:
    variants:
      - {name: stable, model: detector, weight: 95}
      - {name: canary, model: detector_v2, weight: 5}
    sticky: header:x-user-id
    ramp: {to: 50, over: 2h}
    rollback: {errors: 2x, p99: 1.5x}
""",
    "health": """\
health:
  interval: 5s
  timeout: 2s
""",
    "outlier_detection": """\
outlier_detection:
  consecutive_failures: 10
  latency_factor: 0
""",
    "slow_start": """\
slow_start:
  window: 30s
""",
    "placement": """\
placement:
  mode: on_demand
  max_models: 12
models:
  bert: {pin: true}
""",
    "warm_up": """\
warm_up:
  enabled: true
""",
    "model_table": """\
model_table:
  refresh: 30s
  restore: false
""",
    "retry": """\
retry:
  attempts: 2
  budget: 0.1
""",
    "hedging": """\
hedging:
  enabled: true
  quantile: 0.99
""",
    "timeouts": """\
timeouts:
  connect: 500ms
  request: 30s
""",
    "limits": """\
limits:
  body_bytes: 64MiB
  memory_bytes: 1GiB
""",
    "access": """\
access:
  tokens:
    - {name: team-a, file: /run/secrets/team-a}
    - {name: deploy, file: /run/secrets/deploy, roles: [infer, control]}
  control: {networks: [10.1.0.0/16]}
  limits:
    - {by: token, requests_per_second: 100}
""",
    "admin": """\
admin:
  hosts: [lb.internal]
""",
    "workers": """\
workers: auto
""",
    "state": """\
state: /var/lib/triton-lb/state.json
""",
    "cancellation": """\
cancellation: withhold
""",
    "forwarded": """\
forwarded: x_forwarded
""",
    "fan_out": """\
fan_out:
  rolling: true
  deadline: 10m
""",
    "shutdown": """\
shutdown:
  pre_stop_delay: 5s
  drain: 60s
""",
    "reload": """\
reload:
  watch: true
""",
    "standby": """\
standby:
  latency: 50ms
  cooldown: 15m
""",
    "log": """\
log:
  format: json
""",
    "access_log": """\
access_log:
  mode: sampled
  sample: 0.1
  path: /var/log/triton-lb/access.log
""",
    "tracing": """\
tracing:
  endpoint: http://127.0.0.1:4318/v1/traces
  ratio: 0.05
""",
    "payload_log": """\
payload_log:
  path: /var/log/triton-lb/payloads.jsonl
  models: {resnet: 0.01, "*": 0.001}
  leave_out: [patient_name]
""",
    "metrics": """\
metrics:
  model_labels: 500
""",
}
"""By the name of the section; each is a valid part of a file."""
