"""The wire: frames, commands, errors, and the layers below them."""
