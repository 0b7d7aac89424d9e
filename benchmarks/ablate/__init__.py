"""What each constant and each mechanism of the scheduler is worth: `make ablate`."""
