"""Tests that need a GPU, skipped elsewhere. They need torch, transformers, triton, pytest and hypothesis and
nothing else of kvquilt's packages: ``python -m pytest --noconftest tests/gpu`` from the repository's root."""
