"""A stock transformers model, driven layer by layer."""
