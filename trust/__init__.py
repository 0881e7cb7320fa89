"""What is believed of catalogs, tables and files: which places, hosts, secrets and properties they may name.

Service and worker decide these things alike, so they decide them here. Knows neither of them.
"""
