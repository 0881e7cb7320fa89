"""What worker and service say to each other over HTTP; the OpenAPI document is the contract."""
