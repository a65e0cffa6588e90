"""What a machine has. `types` and `classes` are pure; the backends beside them are not.

Nothing is re-exported here, so that importing the pure types never loads a backend.
"""
