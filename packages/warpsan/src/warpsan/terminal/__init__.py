"""Common parts of command lines: consoles, JSON documents, exit codes, options, tables, hazards."""
