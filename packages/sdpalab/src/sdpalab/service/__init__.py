"""The evaluation service: jobs in a database, warm workers, and HTTP in front of them (extra ``serve``)."""
