"""Measures how a real model reads real prose with reused KV, conditioned on its document or not:
``python -m load_tests.reading``.

Questions and articles come as a file in SQuAD's format (``articles``), are cut as ingestion does, and asked
with distractors of the same article (``contexts``); the engine answers in every mode over KV of every kind
(``bench``), answers are scored as SQuAD scores them (``scoring``) and kept as they come, and ``findings`` is
what they say.
"""
