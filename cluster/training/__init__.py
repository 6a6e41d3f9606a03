"""Feeds training: with documents and questions of a file, or invented ones, cut and chained as ingestion does
it."""
