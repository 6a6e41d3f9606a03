"""Collections as files: export and import."""
