"""How fast, and why not faster: the command line, the training harness, ceilings, reports."""
