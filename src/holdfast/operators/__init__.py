"""From buckets of rows to rows."""
