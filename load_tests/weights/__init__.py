"""What int8 weights cost in quality."""
