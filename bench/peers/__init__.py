"""What holdfast is measured against: the same work in Structured Streaming, with settings that suit it."""
