"""Runs programs of others that tests and benchmarks need beside ours: an S3 server, built or
downloaded once on a machine."""
