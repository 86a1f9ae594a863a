"""Published tables: datasets as Delta and Iceberg tables, for engines that do not know this library."""
