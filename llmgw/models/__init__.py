"""Models as their files describe them: metadata read without weights, and memory estimates."""
