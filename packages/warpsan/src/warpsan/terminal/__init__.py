"""What command lines share: consoles, JSON documents, exit codes, options, tables, hazards."""
