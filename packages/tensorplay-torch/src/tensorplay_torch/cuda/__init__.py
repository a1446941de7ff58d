"""Graphs on CUDA: torch's own capture, watched, and unwound where it fails."""
