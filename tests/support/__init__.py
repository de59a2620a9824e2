"""Harnesses and generators that several tests share."""
