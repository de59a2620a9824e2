"""Who is asking, and what that principal may do.

Nothing here knows HTTP; the API hands over what it found in the headers.
"""
