"""Tests the service under load: questions arrive as they do in life, and the highest rate that still meets
the SLO is found.

It knows the wire (``shared.clients``) and nothing of what is behind it. Start reading at ``command`` (the
options) and ``run`` (what happens in which order); below it ``arrivals`` (when), ``loads`` (what is asked;
``http_load``: over HTTP), ``driver`` (open loop: sending at those instants), ``sample`` (one request's
numbers), ``slo`` (good or not), ``result`` (one rate's numbers), ``sweep`` (the highest rate), ``overhead``
and ``quality``; ``terminal``, ``page`` and ``compare`` show it. ``docs/load-testing.md`` defines every
number.
"""
