"""The payload log: a sample of inferences, held within bounds and written as lines."""
