"""From the bytes of a document to its text and headings. Start reading at ``parse.py``."""
