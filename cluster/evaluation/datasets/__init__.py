"""Reads published evaluation files, each in its authors' format; nothing of them is shipped."""
