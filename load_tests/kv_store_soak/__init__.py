"""Checks that a store keeps what it acknowledged while its agent is killed: ``python -m
load_tests.kv_store_soak``."""
