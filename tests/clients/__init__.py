"""Other people's clients against a running system: `make test-clients`."""
