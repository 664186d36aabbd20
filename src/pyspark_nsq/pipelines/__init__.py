"""Pipelines over topics: small PySpark programs to run (`pumpline pipeline NAME`), read and change.

Each module named after a pipeline is one: `arguments` says what can be asked of it, `run` does it.
"""
