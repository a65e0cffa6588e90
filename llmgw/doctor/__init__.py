"""Doctor: looks over one machine and says what is wrong with it and what to do about each thing."""
