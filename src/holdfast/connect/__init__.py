"""The edges of a pipeline: where rows come in and where they go out."""
