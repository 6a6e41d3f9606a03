"""Measures whether times tell a tenant what texts another has: `python -m load_tests.tenancy`."""
