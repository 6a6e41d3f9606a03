"""Measures the engine beside llama.cpp, with the same weights, in one run."""
