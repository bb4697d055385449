"""Tables for people and for pipes."""
