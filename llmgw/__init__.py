"""llmgw: an event-sourced cluster manager for language models on GPU machines.

The log is the only truth; everything else is a fold of it (see docs/architecture.md).
"""

__version__ = "0.1.0"
