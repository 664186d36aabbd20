"""Pipelines over topics: small PySpark programs to run (`pumpline pipeline NAME`), read and change.

Each module here is a program: `arguments` defines its command line, `run` does the work. The rooms
below have what they share.
"""
