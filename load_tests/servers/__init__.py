"""Programs of others that tests and benchmarks run beside ours: an S3 server, built or
downloaded once on a machine."""
