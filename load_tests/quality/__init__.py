"""Measures what reuse costs in right answers, and how much of that each way of recomputing wins back:
``python -m load_tests.quality``.

No services: contexts and questions are invented (``trials``), retrieved in several ways (``tasks``), made
chunks by ingestion's own code (``ingested``), answered by the engine in every mode (``bench``), with the
tokens that ``shared.selection`` chooses where a mode needs them (``selections``), in several processes
(``asking``), kept as they come (``ledger``), and compared question by question (``paired``, ``findings``).
"""
