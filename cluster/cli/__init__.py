"""The `kvquilt` command line."""
