"""`triton-lb generate`: from the GPUs of a machine to the files of a running stack.

`devices` reads what `nvidia-smi` lists, `nvidia_smi` asks it, `mig` plans MIG devices, `stack`
decides what runs where, `balancer` writes the configuration of triton-lb, `servers` the command
lines behind it; `compose`, `kubernetes` and `systemd` put them into the files of their system, with
`monitoring`; `files` compares them with what is on disk, and `docker` says whether a stack can be
started. The same input gives the same bytes.
"""
