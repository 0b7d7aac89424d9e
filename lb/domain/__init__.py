"""Values, runtime records and the seams between the planes. Imports nothing of lb."""
