"""Tests of configuration, composition and command line."""
