"""Stores and driver for S3, Google Cloud Storage and Azure, on top of the library obstore."""
