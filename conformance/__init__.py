"""Iceberg tables with deletes of every kind, the rows that a reader must see, and a runner for any reader.

Nothing here knows Icestream, nor any library of Iceberg: the tables are written from the specifications of
Iceberg, Parquet, Avro and Puffin alone.
"""
