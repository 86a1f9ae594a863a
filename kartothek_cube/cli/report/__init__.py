"""The model of the report page: statistics of files, heat maps, growth, warnings."""
