"""Reuse modes that compute: which tokens of a context are computed anew, and how."""
