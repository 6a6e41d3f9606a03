"""Judges how the KV of a model's chunks may be reused: asks invented questions in every mode, and makes the
verdict that mode ``auto`` goes by. `kvquilt gate` and ``load_tests.quality`` are its two doors.

No services: contexts and questions are invented (``trials``), retrieved in several ways (``tasks``), made
chunks by ingestion's own code (``ingested``), answered by the engine in every mode (``bench``), with the
tokens that ``shared.selection`` chooses where a mode needs them (``selections``), in several processes
(``asking``), kept as they come (``ledger``), and compared question by question (``findings``) while they come
(``decision``). ``evaluation`` is all of it: start reading there. ``own`` is the same with an operator's
questions; ``served`` leaves out what the model is not served with, ``servings`` compares several ways of
serving it, and ``held`` tells whether a verdict holds on other questions.
"""
