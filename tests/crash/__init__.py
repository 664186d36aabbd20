"""Crashes and faults, with real processes: what survives, and what is said about the rest."""
