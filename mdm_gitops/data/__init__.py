"""Rows of entities: what is asked of them and done to them, as SQL on the deployed tables.

It trusts the principal that ``access`` made and knows nothing of HTTP or of definitions in Git.
"""
