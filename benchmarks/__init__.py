"""Benchmarks of Feedrate against other loaders; see README.md beside this file."""
