"""Attacks: by those who hold a token, use the same host, or wrote the store, plan or job that is opened."""
