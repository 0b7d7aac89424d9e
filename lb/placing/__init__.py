"""Which model is loaded on which backend: decisions without IO."""
