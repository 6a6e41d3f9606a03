"""Configuration, the composition root, the local stack and the command line."""
