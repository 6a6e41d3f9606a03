"""Blobs in a bucket of an S3-compatible server."""
