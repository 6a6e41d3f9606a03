"""Computes whether a guard would pay that answers anew, with more recomputed, where two cheap ways of
answering
disagree: ``python -m load_tests.guard``. From answers that ``load_tests.quality`` kept; nothing is
asked."""
