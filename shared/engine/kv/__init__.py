"""KV in memory: segments, their encodings, residency and loading."""
