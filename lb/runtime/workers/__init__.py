"""Several processes that serve clients as one (`workers`): docs/workers.md."""
