"""What holds for the keys in Redis at any moment between two scripts."""
