"""The steps of a history, by who takes them.

Each step is a method that draws what it does, does it to the table and to the model, and says what it did.
"""
