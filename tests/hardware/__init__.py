"""Hardware discovery: class names, parsers, backends."""
