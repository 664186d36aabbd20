"""Delta and Iceberg tables: Spark writes the files, the formats' own libraries commit them."""
