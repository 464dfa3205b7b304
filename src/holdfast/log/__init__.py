"""What is durable: streams of frames in segments, and the journals that say which frames count."""
