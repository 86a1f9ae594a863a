"""What several tests share: stores, façades, golden data, the API contract."""
