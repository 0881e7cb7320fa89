"""Every rule of equality deletes on real tables, under the eyes of several readers."""
