"""Tests of the Triton kernels in Triton's interpreter, on a CPU. They need a process of their own, since
Triton decides at its import how it works: ``TRITON_INTERPRET=1 pytest tests/interpreter``, as
``tests/integration/test_triton_interpreter.py`` does.
"""
