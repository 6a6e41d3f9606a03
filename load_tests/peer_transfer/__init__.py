"""Sends chunks from node to node, by three transports: ``python -m load_tests.peer_transfer``."""
