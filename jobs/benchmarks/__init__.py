"""The rows of the benchmark and what they share; ``jobs/benchmark.py`` runs them."""
