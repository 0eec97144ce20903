"""HTML pages: the report of a bundle, the comparison of two, the report of a search, the page of a profile."""
