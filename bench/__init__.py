"""Measurements: ours and the peers', each one command, each with its goals."""
