"""Who may do what, and how often: tokens, network rules, limits per client. Decides only."""
