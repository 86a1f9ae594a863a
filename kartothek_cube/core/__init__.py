"""What a dataset and a cube are: names, headers, schemas, partitions, indices, stores and commits."""
