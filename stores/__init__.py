"""How service and worker open the files of a store, alike in both; knows neither."""
