"""Evaluates a model by the papers' own tasks and metrics, in every mode of reuse: what `kvquilt eval` runs.

No services: a suite (``suites``) makes tasks of cases (``cases``), on the spot (``ruler``) or from published
files (``datasets``); their documents are cut as ingestion cuts them (``cutting``), the engine answers in
every mode over KV of every kind (``arms``, ``bench``), in several processes, going on from the answers that
are kept (``asking``); answers are scored as the suites' authors score them (``metrics``), and ``findings``
compares them question by question. Start reading in ``evaluation``.
"""
