"""Calls one service from another: typed clients over a transport.

A client turns domain values into protos, calls, and turns the answer back; a ``Transport`` carries protos and
raises ``shared.errors``. Inside a cluster that is a Ray Serve handle (``serve_transport``, the only module
here that imports ray), from outside and between nodes a gRPC channel (``grpc_transport``), in tests a fake.
Start reading at ``transport``.
"""
