"""`icestream demo`: its story, and its table with a model of its rows."""
