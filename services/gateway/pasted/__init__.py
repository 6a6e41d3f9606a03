"""Recognises known text in raw prompts, so that pasted documents are placed instead of computed.

A user's message is cut at the borders of ingested chunks that the caller may read, by a hash over text and
then character by character; long text that is left is cut at borders that its own content makes, so that the
same passage has the same pieces behind whatever it stands. What is cut out becomes the context, as if it had
been handed over; the rest stays where it was said. Start reading at ``recognising``; below it
``known_texts`` (what a caller's documents say, as hashes), ``known_chunks`` (looking them up), ``borders``
(cutting what nobody knows), ``cut_out`` (what goes, what stays) and ``text_hash``. ``docs/pasted-text.md``
says what it promises.
"""
