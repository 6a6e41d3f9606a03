"""Offers tools to models of other programs, by the Model Context Protocol: `search`, `ask`, `list_documents`.

Knows neither HTTP nor gRPC: the gateway and the command line hand it a ``Library``. Start at ``server``.
"""
