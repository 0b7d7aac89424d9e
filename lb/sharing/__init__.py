"""What the workers of one machine tell each other through shared memory."""
