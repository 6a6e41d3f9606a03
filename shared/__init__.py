"""Parts that two or more services use: errors, configuration, the RPC seam, clients, the engine and the KV
file format."""
