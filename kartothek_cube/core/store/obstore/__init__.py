"""Driver for S3, Google Cloud Storage and Azure, on top of obstore."""
