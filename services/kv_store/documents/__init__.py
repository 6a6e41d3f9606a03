"""Document manifests, and what follows from them: references, pins, quotas."""
