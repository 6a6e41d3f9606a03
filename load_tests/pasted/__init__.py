"""Measures what it saves that pasted text is recognised: start reading at ``__main__``; ``documents`` makes
what is pasted, ``pairs`` asks and finds."""
