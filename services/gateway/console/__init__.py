"""The console: a page of this gateway that asks it as any other client does, over ``/v1``.

Static files and the headers that they are served with; it knows nothing of the pipeline. Start reading at
``static/main.js``; docs/console.md is for users.
"""
