"""Follow-up questions of generated conversations, and what a search finds by them."""
