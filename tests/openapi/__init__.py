"""Whether `/openapi.json` says what the gateway does: ``make test-openapi``."""
