"""`holdfast demo`: a retail pipeline that is killed in the middle, and what comes out of it."""

from holdfast.demo.story import main

__all__ = ["main"]
