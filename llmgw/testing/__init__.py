"""What a test of llmgw, or of something built on it, needs: pretended hardware and engines.

Shipped with the package and imported by nothing else in it. Nothing is re-exported here, so that a
test loads only what it uses.
"""
