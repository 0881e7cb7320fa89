"""`make mutants`: how many small mistakes in the code that decides about rows and access the tests find."""
