"""Checks that a whole stack keeps its promises while its processes are killed, stopped and cut off from
their object store: ``python -m load_tests.cluster_soak``."""
