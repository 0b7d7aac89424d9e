"""What probes and live traffic say about a backend: pure state machines, time as an argument."""
