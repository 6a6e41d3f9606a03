"""The console in a real browser, before a real stack: `make test-console`."""
