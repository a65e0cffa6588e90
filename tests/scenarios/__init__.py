"""Text files that tell a whole story: what happens, what is decided, what the agents do."""
