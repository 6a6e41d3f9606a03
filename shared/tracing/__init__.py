"""Traces of requests through all services, by OpenTelemetry: what a request waited for, in spans.

Begin with ``spans``: a stage is a ``with span(ctx, …)``. The context of a trace travels in
``RequestContext``, never in a variable of the task: streams are generators, which run in whatever task asks
them for the next value. Whose ``ctx`` is not traced costs a look at one attribute. ``provider`` decides, once
per process, where spans go.
"""
