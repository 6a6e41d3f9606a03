"""Makes RULER's retrieval and tracing tasks on the spot, by seed and length (Hsieh et al., 2024,
arXiv 2404.06654)."""
