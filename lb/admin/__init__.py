"""The admin API: how the backends are, and what the operator says about them."""
