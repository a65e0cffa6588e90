"""What the operator wants served: entries, and reading them from YAML."""
