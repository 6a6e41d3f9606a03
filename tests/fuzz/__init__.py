"""Throws damaged files at every parser: none may end as an internal error, or take more than it is given. A
few seconds in the test suite (tests/integration/test_fuzz.py), hours by hand: `make fuzz SECONDS=3600`. Start
reading at ``rounds``."""
