"""Files that callers hand over, vector stores (collections, as OpenAI's clients see them), and answers.

A vector store **is** a collection; what it holds is what the manifests say. Kept beside them, as items of the
store (``shared.kv_items``), is only what they cannot know:

    file           an upload: its name, its purpose, its bytes
    vector_store   name and metadata that somebody gave a collection; also before it has documents
    attachment     a file on its way into a collection, or one that did not get there; gone once it is a
                   document
    batch          which files were attached together
    response       an answer, with what was said in front of it

Knows neither HTTP nor protos. Start reading at ``members``.
"""
