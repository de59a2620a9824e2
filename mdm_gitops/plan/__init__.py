"""What must change to make the warehouse what Git says, decided without touching anything.

Pure: values in, a plan out. Reading the catalog and carrying a plan out is the work of
``warehouse``.
"""
