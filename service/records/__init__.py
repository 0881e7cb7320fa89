"""The rows of the control database, one module for each kind of thing; no rules about them."""
