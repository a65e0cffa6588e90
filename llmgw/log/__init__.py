"""The log: append, follow and replay. `base` says what a log is; the other modules are logs."""
