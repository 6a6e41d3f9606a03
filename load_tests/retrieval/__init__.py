"""Measures how well retrieval finds the passage that a question is about, and whom refusal refuses."""
