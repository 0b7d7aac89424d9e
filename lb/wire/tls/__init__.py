"""What has to be read of TLS outside the library: a client's first message, and certificates."""
