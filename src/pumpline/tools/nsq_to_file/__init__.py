"""nsq_to_file: messages of topics into files, each finished when it is safe on the disk."""
